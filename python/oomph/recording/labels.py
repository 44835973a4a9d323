"""Which tensor each block is: parameter, buffer, gradient, optimizer state or input, with its name.

A block is known by the address of a tensor at a moment, and a moment by the number of allocations that the device has made
by then. So a label can be told for a block that is gone when the recording is written.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .names import Names, of_class, outermost_modules

Label = tuple[str, str, str]
"""Category, dotted name, class of the outermost module."""
Seen = tuple[int, int, int, int]
"""Number of the label, device, address, bytes."""

_MOST_SEEN = 4_000_000
"""Tensors in all sets together (32 bytes each); the oldest sets go first, as the history's oldest events do."""
_RECENT = 8
"""Marks among which the same set is looked for."""
_MOST_INPUTS = 16


class Labels:
    def __init__(self, names: Names, allocations: Callable[[], dict[int, int]], kind: str) -> None:
        self.names = names
        self.allocations = allocations
        self.kind = kind
        self._labels: dict[Label, int] = {}
        self._marks: deque[tuple[dict[int, int], tuple[Seen, ...]]] = deque()
        self._seen = 0
        self._gradients_at: dict[int, tuple[tuple[int, ...], tuple[Seen, ...]]] = {}
        self._known: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()
        self._signatures: dict[type, list[str]] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Optimizer], int]] = {}
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        for handle in (
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._undo.append(handle.remove)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def entered(self, module: Module, args: Any, kwargs: Any) -> None:
        """A module is called by no other: what it is given are inputs, and all below it are its parameters and buffers."""
        seen: list[Seen] = []
        model = self.names.of_module(module)
        if id(module) not in self._known:
            self._known[id(module)] = module
            for tensor in (*module.parameters(), *module.buffers()):
                seen += self._named(tensor)
        for name, tensor in _inputs(self._arguments(module), args, kwargs):
            if tensor.grad_fn is None and self.names.of_tensor(tensor) is None:
                seen += self._see(("input", name, model), tensor)
        self._mark(seen)

    def everything(self) -> None:
        """All that can be named at this moment: before a recording is written."""
        seen: list[Seen] = []
        for module in outermost_modules():
            for kind, name, tensor in self.names.learn(module):
                model = of_class(module)
                seen += self._see((kind, name, model), tensor)
                if tensor.is_leaf and tensor.grad is not None:
                    seen += self._see(("gradient", name, model), tensor.grad)
        for optimizer, _ in list(self._optimizers.values()):
            alive = optimizer()
            if alive is not None:
                seen += self._gradients(alive)
                seen += self._state(alive)
        self._mark(seen)

    def as_json(self) -> dict[str, Any]:
        numbers = {entries: number for number, entries in enumerate(dict.fromkeys(entries for _, entries in self._marks))}
        return {
            "version": 1,
            "tensors": list(self._labels),
            "sets": list(numbers),
            "marks": [[at, numbers[entries]] for at, entries in self._marks],
        }

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Gradients are all there now, whatever becomes of them."""
        try:
            if id(optimizer) not in self._optimizers:
                self._optimizers[id(optimizer)] = (weakref.ref(optimizer), 0)
            addresses = _addresses_of_gradients(optimizer)
            before, entries = self._gradients_at.get(id(optimizer), (None, ()))
            if addresses is None or addresses != before:
                entries = tuple(self._gradients(optimizer))
                if addresses is not None:
                    self._gradients_at[id(optimizer)] = (addresses, entries)
            self._mark(entries)
        except Exception:
            return  # without these labels; the program goes on

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        try:
            reference, steps = self._optimizers.get(id(optimizer), (weakref.ref(optimizer), 0))
            self._optimizers[id(optimizer)] = (reference, steps + 1)
            # Its state stays where it is: a look now and then is enough, after 1, 2, 4, 8 … steps.
            if steps & (steps + 1) == 0:
                self._mark([*self._parameters(optimizer), *self._state(optimizer)])
        except Exception:
            return

    def _gradients(self, optimizer: Optimizer) -> Iterator[Seen]:
        for parameter in _parameters(optimizer):
            gradient = parameter.grad
            if gradient is not None:
                name, model = self._name(parameter)
                yield from self._see(("gradient", name, model), gradient)

    def _parameters(self, optimizer: Optimizer) -> Iterator[Seen]:
        for parameter in _parameters(optimizer):
            name, model = self._name(parameter)
            yield from self._see(("parameter", name, model), parameter)

    def _state(self, optimizer: Optimizer) -> Iterator[Seen]:
        for parameter, state in list(optimizer.state.items()):
            if not isinstance(state, dict) or not isinstance(parameter, torch.Tensor):
                continue
            name, model = self._name(parameter)
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield from self._see(("optimizer", f"{name}.{key}", model), value)

    def _named(self, tensor: torch.Tensor) -> Iterator[Seen]:
        known = self.names.of_tensor(tensor)
        if known is not None:
            kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
            yield from self._see((kind, *known), tensor)

    def _name(self, parameter: torch.Tensor) -> tuple[str, str]:
        return self.names.of_tensor(parameter) or (f"parameter of shape {tuple(parameter.shape)}", "")

    def _see(self, label: Label, tensor: torch.Tensor | None) -> Iterator[Seen]:
        local = getattr(tensor, "_local_tensor", tensor)  # DTensor's own part
        if not isinstance(local, torch.Tensor) or local.device.type != self.kind or local.is_sparse:
            return
        # Of views only the storage is a block: gradients in a bucket, parameters in a flat one.
        storage = local.untyped_storage()
        address = storage.data_ptr()
        if address:
            number = self._labels.setdefault(label, len(self._labels))
            yield (number, local.device.index or 0, address, storage.nbytes())

    def _mark(self, seen: Iterable[Seen]) -> None:
        entries = tuple(seen)
        if not entries:
            return
        # In a steady loop gradients lie at the same addresses in every step.
        is_new = not any(entries is known for _, known in itertools.islice(reversed(self._marks), _RECENT))
        self._marks.append((self.allocations(), entries))
        self._seen += len(entries) if is_new else 1
        while self._seen > _MOST_SEEN and len(self._marks) > 1:
            self._seen -= len(self._marks.popleft()[1])

    def _arguments(self, module: Module) -> list[str]:
        kind = type(module)
        if kind not in self._signatures:
            try:
                self._signatures[kind] = list(inspect.signature(module.forward).parameters)
            except (TypeError, ValueError):
                self._signatures[kind] = []
        return self._signatures[kind]


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _addresses_of_gradients(optimizer: Optimizer) -> tuple[int, ...] | None:
    """A quick look whether any gradient lies elsewhere; `None` if one is of a kind that has to be looked at closely."""
    gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
    if not set(map(type, gradients)) <= {torch.Tensor, type(None)}:
        return None
    return tuple([0 if gradient is None else gradient.data_ptr() for gradient in gradients])


def _inputs(arguments: list[str], args: Any, kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors among the arguments of a call, one level deep, each with the name of its argument."""
    named = [(arguments[at] if at < len(arguments) else str(at), value) for at, value in enumerate(args)]
    count = 0
    for name, value in (*named, *kwargs.items()):
        parts: Iterable[tuple[str, Any]] = [(name, value)]
        if isinstance(value, dict):
            parts = [(f"{name}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, (tuple, list)):
            parts = [(f"{name}.{at}", inner) for at, inner in enumerate(value)]
        for full, inner in parts:
            if isinstance(inner, torch.Tensor):
                yield full, inner
                count += 1
                if count == _MOST_INPUTS:
                    return

