"""Activation checkpointing of a model's repeated blocks.

Models are mostly the same block again and again: in an `nn.ModuleList` or `nn.Sequential`, sometimes as attributes
(`down1`, `down2`). Each such block keeps only its inputs, and is computed again in the backward pass. Models of Hugging
Face transformers know how to do it themselves.

A block gets a subclass of its own class, whose `forward` is checkpointed: unlike a replaced attribute, copies of the
block (averages of weights) stay whole.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .forwards import Forwards, Listener, has_parameters, model_name
from .technique import Technique, listed, refused


class Checkpoint(Technique, Listener):
    """`chosen`: which of the blocks, by their index; without it all."""

    def __init__(self, forwards: Forwards, chosen: frozenset[int] | None = None) -> None:
        self.forwards = forwards
        self.chosen = chosen
        self.done: list[str] = []
        self.reasons: list[str] = []
        self.seen: set[int] = set()

    def install(self) -> None:
        self.forwards.listen(self)

    def outcome(self) -> str:
        if self.done:
            return listed(self.done)
        return refused(self.reasons[0] if self.reasons else "no module was called in training")

    def begin(self, module: torch.nn.Module, trains: bool) -> None:
        if trains and id(module) not in self.seen and has_parameters(module):
            self.seen.add(id(module))
            self._apply(module)

    def _apply(self, module: torch.nn.Module) -> None:
        know_how = list(_models_that_know_how(module))
        for model in know_how:
            if model.is_gradient_checkpointing:
                self.reasons.append(f"{type(model).__name__} already checkpoints its blocks")
            else:
                self._enable(model)
        if know_how:
            return
        blocks = find_blocks(module)
        if not blocks:
            self.reasons.append(f"no repeated blocks were found in {model_name(module)}")
        chosen = self._choose(blocks)
        for block in chosen:
            block.__class__ = _checkpointed(type(block))
        self.done += _counted(chosen, blocks)

    def _choose(self, blocks: list[torch.nn.Module]) -> list[torch.nn.Module]:
        return [block for index, block in enumerate(blocks) if self.chosen is None or index in self.chosen]

    def _enable(self, model: Any) -> None:
        try:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        except TypeError:
            # Before transformers 4.35 there is no choice.
            model.gradient_checkpointing_enable()
        # The keys and values of earlier tokens are for generation, and cannot be computed twice.
        model.config.use_cache = False
        blocks = _flagged(model)
        chosen = self._choose(blocks)
        for block in blocks:
            block.gradient_checkpointing = any(block is each for each in chosen)
        self.done += _counted(chosen, blocks) or [f"gradient_checkpointing_enable() of {type(model).__name__}"]


def _flagged(model: torch.nn.Module) -> list[Any]:
    """The repeated parts of a model of Hugging Face transformers that have a switch of their own."""
    parts = [part for part in model.modules() if hasattr(part, "gradient_checkpointing")]
    counts = Counter(type(part) for part in parts)
    return [part for part in parts if counts[type(part)] > 1]


def _counted(chosen: list[torch.nn.Module], blocks: list[torch.nn.Module]) -> list[str]:
    counts = Counter(type(block).__name__ for block in chosen)
    all_of = Counter(type(block).__name__ for block in blocks)
    return [_words(name, count, all_of[name]) for name, count in counts.items()]


def _words(name: str, count: int, of: int) -> str:
    if count < of:
        return f"{count} of {of} blocks of {name}"
    return f"{count} blocks of {name}" if count > 1 else f"a block of {name}"


def _models_that_know_how(module: torch.nn.Module) -> Iterator[Any]:
    """Models of Hugging Face transformers in a module, but not those inside others."""
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is None:
        return
    if isinstance(module, transformers.PreTrainedModel) and module.supports_gradient_checkpointing:
        yield module
    else:
        for child in module.children():
            yield from _models_that_know_how(child)


def candidates(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks that can be chosen, in the order of their indexes."""
    know_how = list(_models_that_know_how(module))
    return _flagged(know_how[0]) if know_how else find_blocks(module)


def find_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated blocks of a model: those in lists, or, if there are none, those that are attributes."""
    return _blocks_in_lists(module) or _blocks_in_attributes(module)


def _blocks_in_lists(module: torch.nn.Module) -> list[torch.nn.Module]:
    blocks = _repeated(module) if _is_list(module) else []
    for child in module.children():
        if not any(child is block for block in blocks):
            blocks += _blocks_in_lists(child)
    if not blocks and _is_list(module):
        # Blocks may be sequences of layers themselves.
        blocks = _repeated(module, lists=True)
    return blocks


def _blocks_in_attributes(module: torch.nn.Module) -> list[torch.nn.Module]:
    blocks = _repeated(module, lists=True)
    for child in () if blocks else module.children():
        blocks += _blocks_in_attributes(child)
    return blocks


def _is_list(module: torch.nn.Module) -> bool:
    """Whether it is just a list: subclasses of these are blocks with a name."""
    return type(module) in (torch.nn.ModuleList, torch.nn.Sequential)


def _repeated(module: torch.nn.Module, lists: bool = False) -> list[torch.nn.Module]:
    """Children of a class that another child has as well."""
    children = [child for child in module.children() if _is_block(child) and (lists or not _is_list(child))]
    counts = Counter(type(child) for child in children)
    return [child for child in children if counts[type(child)] > 1]


def _is_block(module: torch.nn.Module) -> bool:
    """Several layers: of a single one nothing can be left out, as its input is all that it keeps."""
    # A list that cannot be called has the `forward` that raises.
    if not has_parameters(module) or type(module).forward is torch.nn.Module.forward:
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return False
    is_layer = type(module).__module__.startswith("torch.nn.") and next(module.children(), None) is None
    return not is_layer


def _checkpointed(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """A subclass whose forward pass is computed again in the backward pass."""

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            return checkpoint(kind.forward, self, *args, use_reentrant=False, **kwargs)
        return kind.forward(self, *args, **kwargs)

    def __reduce_ex__(self: torch.nn.Module, protocol: Any) -> Any:
        # In pickles and copies it is what it was.
        reduced: Any = kind.__reduce_ex__(self, protocol)
        function, arguments, *state = reduced
        return function, tuple(kind if argument is type(self) else argument for argument in arguments), *state

    members: dict[str, Any] = {"forward": forward, "__reduce_ex__": __reduce_ex__, "__module__": kind.__module__}
    metaclass: Any = type(kind)
    subclass: type[torch.nn.Module] = metaclass(kind.__name__, (kind,), members)
    return subclass
