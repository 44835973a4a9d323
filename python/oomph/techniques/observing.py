"""What a change to the program would touch: its lines, and what each block of the model keeps for the backward pass.

Changes nothing. `oomph fit` runs the program with this for one step, and chooses and writes its changes by what it finds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from ..interpreter.frames import callers, is_users
from .checkpointing import candidates
from .forwards import Forwards, Listener, has_parameters
from .technique import Technique

_TRAINERS = {"transformers.trainer": "transformers", "lightning.pytorch": "lightning", "pytorch_lightning": "lightning"}
"""Modules of trainers, which have settings for what their users would otherwise write."""


class Observe(Technique, Listener):
    def __init__(self, forwards: Forwards) -> None:
        self.forwards = forwards
        self.lines: dict[str, list[dict[str, Any]]] = {"forward": [], "backward": [], "optimizer": [], "loader": []}
        self.model: list[dict[str, Any]] = []
        self.trainer: str | None = None
        self.knows_how = False
        self.has_batch_statistics = False
        self.blocks: list[dict[str, Any]] = []
        self.flops = 0
        self.has_zeroed_gradients = False
        self._counter: Any = None
        """PyTorch's counter of floating-point operations, while it counts."""
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        self.forwards.listen(self)
        torch.optim.Optimizer.__init__ = self._noting("optimizer", torch.optim.Optimizer.__init__)  # type: ignore
        DataLoader.__init__ = self._noting("loader", DataLoader.__init__)  # type: ignore[method-assign]
        torch.optim.Optimizer.zero_grad = self._seeing(torch.optim.Optimizer.zero_grad)  # type: ignore[method-assign]
        torch.nn.Module.zero_grad = self._seeing(torch.nn.Module.zero_grad)  # type: ignore[method-assign]

    def outcome(self) -> str:
        return "nothing was changed"

    def observed(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "model": self.model,
            "trainer": self.trainer,
            "knows_how": self.knows_how,
            "has_batch_statistics": self.has_batch_statistics,
            "blocks": self.blocks,
            "flops": self.flops,
            "has_zeroed_gradients": self.has_zeroed_gradients,
        }

    def begin(self, module: torch.nn.Module, trains: bool) -> None:
        if not trains or self.lines["forward"] or not has_parameters(module):
            return
        frames = list(callers())
        self._note("forward", {}, frames)
        self.trainer = next((name for frame in frames if (name := _trainer(frame)) is not None), None)
        self.model = [{**_line(frame), "name": name} for frame in frames if is_users(frame) for name in _names(module, frame)]
        self.knows_how = hasattr(module, "gradient_checkpointing_enable")
        self.has_batch_statistics = any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in module.modules())
        self._measure(module)

    def end(self) -> None:
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.__exit__(None, None, None)
            self.flops = counter.get_total_flops()
        while self._undo:
            self._undo.pop()()

    def leave(self) -> None:
        if self.lines["forward"] and not self.lines["backward"]:
            self._note("backward", {}, list(callers()))

    def _noting(self, kind: str, construct: Callable[..., None]) -> Callable[..., None]:
        technique = self

        @functools.wraps(construct)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            construct(self, *args, **kwargs)
            facts = {"kind": type(self).__name__, "batch": getattr(self, "batch_size", None)}
            technique._note(kind, facts, list(callers()))

        return __init__

    def _seeing(self, zero_grad: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(zero_grad)
        def seen(target: Any, set_to_none: bool = True) -> None:
            self.has_zeroed_gradients |= not set_to_none
            zero_grad(target, set_to_none=set_to_none)

        return seen

    def _note(self, kind: str, facts: dict[str, Any], frames: list[FrameType]) -> None:
        """Notes the innermost line that is the program's own."""
        frame = next((frame for frame in frames if is_users(frame)), None)
        if frame is not None and len(self.lines[kind]) < 64:
            self.lines[kind].append({**_line(frame), **facts})

    def _measure(self, module: torch.nn.Module) -> None:
        """What each block adds to allocated memory in the forward pass besides its output, and what it computes."""
        names = {id(part): name for name, part in module.named_modules()}
        for block in candidates(module):
            row = {"name": names.get(id(block), ""), "kind": type(block).__name__, "kept": 0, "flops": 0}
            self.blocks.append(row)
            self._undo.append(block.register_forward_pre_hook(functools.partial(self._entered, row)).remove)
            self._undo.append(block.register_forward_hook(functools.partial(self._left, row)).remove)
        if not isinstance(module, torch.jit.ScriptModule) and not hasattr(module, "_orig_mod"):
            # Not before: it imports Triton, also in programs that do without.
            from torch.utils.flop_counter import FlopCounterMode

            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()

    def _entered(self, row: dict[str, Any], *_: Any) -> None:
        row["kept"] -= torch.cuda.memory_allocated()
        row["flops"] -= self._flops()

    def _left(self, row: dict[str, Any], _module: Any, _inputs: Any, output: Any) -> None:
        outputs = sum(leaf.untyped_storage().nbytes() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        row["kept"] += torch.cuda.memory_allocated() - outputs
        row["flops"] += self._flops()

    def _flops(self) -> int:
        return 0 if self._counter is None else int(self._counter.get_total_flops())


def _line(frame: FrameType) -> dict[str, Any]:
    code = frame.f_code
    return {"file": code.co_filename, "line": frame.f_lineno, "function": code.co_name}


def _trainer(frame: FrameType) -> str | None:
    name: str = frame.f_globals.get("__name__", "")
    return next((trainer for module, trainer in _TRAINERS.items() if name == module or name.startswith(f"{module}.")), None)


def _names(module: torch.nn.Module, frame: FrameType) -> list[str]:
    """How the program calls the module in a function: `model`, or `self.model`."""
    found = [name for name, value in frame.f_locals.items() if value is module and name.isidentifier()]
    owner = frame.f_locals.get("self")
    if owner is not None and owner is not module:
        members = {**getattr(owner, "__dict__", {}), **getattr(owner, "_modules", {})}
        found += [f"self.{name}" for name, value in members.items() if value is module]
    return found[:2]
