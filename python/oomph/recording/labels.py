"""Which tensor each block is: parameter, buffer, gradient, optimizer state or input, with its name.

A block is known by the address of a tensor at a moment, and a moment by the number of allocations that the device has made
by then. So even a block that is freed before the recording is written can have a label.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..interpreter.dynamo import never_traced
from ..interpreter.errors import keep
from ..interpreter.objects import instances
from .names import Names, of_class, outermost_modules

Label = tuple[str, str, str]
"""Category, dotted name, class of the outermost module."""
Seen = tuple[int, int, int, int]
"""Number of the label, device, address, bytes."""

_MAX_SEEN = 500_000
"""Tensors in all sets together (some 200 bytes each); the oldest sets go first, as the history's oldest events do."""
_MAX_INPUTS = 16


@dataclass
class Stepped:
    """An optimizer that has taken a step."""

    optimizer: weakref.ref[Optimizer]
    groups: int = 0
    """Parameter groups, when its parameters were last looked for in modules."""
    steps: int = 0


class Labels:
    def __init__(self, names: Names, allocations: Callable[[], dict[int, int]], kind: str) -> None:
        self.names = names
        self.allocations = allocations
        self.kind = kind
        self.is_looking = True
        """Whether to look at what each step has: one that repeats another gets its labels from that (`labels.rs`)."""
        self._labels: dict[Label, int] = {}
        self._marks: deque[tuple[dict[int, int], tuple[Seen, ...]]] = deque()
        self._uses: Counter[int] = Counter()
        self._seen = 0
        # A signal's dump is written by a thread of its own.
        self._lock = threading.Lock()
        self._gradients_at: dict[int, tuple[tuple[int, ...], tuple[Seen, ...]]] = {}
        self._known: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()
        self._entered_with: tuple[Seen, ...] = ()
        self._signatures: dict[type, list[str]] = {}
        self._optimizers: dict[int, Stepped] = {}
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
        if not self.is_looking:
            return
        seen: list[Seen] = []
        model = self.names.of_module(module)
        if id(module) not in self._known:
            self._known[id(module)] = module
            for tensor in (*module.parameters(), *module.buffers()):
                seen += self._named(tensor)
        for name, tensor in self.inputs(module, args, kwargs):
            if tensor.grad_fn is None and self.names.of_tensor(tensor) is None:
                seen += self._see(("input", name, model), tensor)
        entries = tuple(seen)
        if self._entered_with == entries:
            entries = self._entered_with  # the same object is one set
        self._entered_with = entries
        self._mark(entries)

    def inputs(self, module: Module, args: Any, kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors that a module is called with, by the names of its arguments."""
        return _inputs(self._arguments(module), args, kwargs)

    def everything(self) -> None:
        """All that can be named at this moment: before a recording is written."""
        seen: list[Seen] = []
        for module in outermost_modules():
            seen += _as_far_as_possible(self._model(module))
        # Also those that have not taken a step yet.
        for optimizer in instances(Optimizer):
            if "param_groups" in optimizer.__dict__:
                seen += _as_far_as_possible(self._changed(optimizer))
                seen += _as_far_as_possible(self._gradients(optimizer))
                seen += _as_far_as_possible(self._state(optimizer))
        self._mark(seen)

    def as_json(self) -> dict[str, Any]:
        with self._lock:
            marks = list(self._marks)
        sets: dict[int, tuple[Seen, ...]] = {id(entries): entries for _, entries in marks}
        numbers = {key: number for number, key in enumerate(sets)}
        return {
            "version": 1,
            "tensors": list(self._labels),
            "sets": list(sets.values()),
            "marks": [[at, numbers[id(entries)]] for at, entries in marks],
        }

    @never_traced
    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Gradients are all there now, whatever becomes of them."""
        try:
            known = self._optimizers.get(id(optimizer))
            if known is None or known.optimizer() is not optimizer:
                known = self._optimizers[id(optimizer)] = Stepped(weakref.ref(optimizer))
                self._gradients_at.pop(id(optimizer), None)
            if known.groups != len(optimizer.param_groups):
                known.groups = len(optimizer.param_groups)
                if any(self.names.of_tensor(parameter) is None for parameter in _parameters(optimizer)):
                    self.names.search()
            if not self.is_looking:
                return
            addresses = _addresses_of_gradients(optimizer)
            before, entries = self._gradients_at.get(id(optimizer), (None, ()))
            if addresses is None or addresses != before:
                entries = tuple(self._gradients(optimizer))
                if addresses is not None:
                    self._gradients_at[id(optimizer)] = (addresses, entries)
            self._mark(entries)
        except Exception as error:
            keep(error)  # without these labels; the program goes on

    @never_traced
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        try:
            known = self._optimizers.setdefault(id(optimizer), Stepped(weakref.ref(optimizer)))
            steps = known.steps
            known.steps += 1
            # Its state stays where it is: a look now and then is enough, after 1, 2, 4, 8 … steps.
            if steps & (steps + 1) == 0:
                self._mark([*self._changed(optimizer), *self._state(optimizer)])
        except Exception as error:
            keep(error)

    def _gradients(self, optimizer: Optimizer) -> Iterator[Seen]:
        for parameter in _parameters(optimizer):
            gradient = parameter.grad
            if gradient is not None:
                name, model = self._name(parameter)
                yield from self._see(("gradient", name, model), gradient)

    def _changed(self, optimizer: Optimizer) -> Iterator[Seen]:
        """What an optimizer changes: parameters, or in place of those in half precision their float32 copies, as the optimizers
        of DeepSpeed, Apex and Megatron do: these are in no module."""
        unknown = [parameter for parameter in _parameters(optimizer) if self.names.of_tensor(parameter) is None]
        copies = {id(parameter) for parameter in unknown if parameter.dtype == torch.float32}
        if copies and not self.names.have_half_precision():
            copies = set()
        for parameter in _parameters(optimizer):
            if id(parameter) in copies:
                yield from self._see(("optimizer", f"float32 copy of shape {tuple(parameter.shape)}", ""), parameter)
            else:
                name, model = self._name(parameter)
                yield from self._see(("parameter", name, model), parameter)

    def _state(self, optimizer: Optimizer) -> Iterator[Seen]:
        for parameter, state in list(optimizer.state.items()):
            if not isinstance(state, dict) or not isinstance(parameter, torch.Tensor):
                continue
            name, model = self._name(parameter)
            for key, value in _parts(state):
                yield from self._see(("optimizer", f"{name}.{key}", model), value)

    def _model(self, module: Module) -> Iterator[Seen]:
        model = of_class(module)
        for kind, name, tensor in self.names.learn(module):
            yield from self._see((kind, name, model), tensor)
            if tensor.is_leaf and tensor.grad is not None:
                yield from self._see(("gradient", name, model), tensor.grad)

    def _named(self, tensor: torch.Tensor) -> Iterator[Seen]:
        known = self.names.of_tensor(tensor)
        if known is not None:
            kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
            yield from self._see((kind, *known), tensor)

    def _name(self, parameter: torch.Tensor) -> tuple[str, str]:
        return self.names.of_tensor(parameter) or (f"parameter of shape {tuple(parameter.shape)}", "")

    def _see(self, label: Label, tensor: torch.Tensor | None) -> Iterator[Seen]:
        local = getattr(tensor, "_local_tensor", tensor)  # DTensor's own part
        if not isinstance(local, torch.Tensor) or type(local).__name__ == "FakeTensor" or local.device.type != self.kind:
            return
        try:
            # Of views only the storage is a block: gradients in a bucket, parameters in a flat one.
            storage = local.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
        except Exception as error:
            return keep(error)  # sparse, nested, lazy, a dead output of a graph: no one storage
        if address:
            number = self._labels.setdefault(label, len(self._labels))
            yield (number, local.device.index or 0, address, size)

    def _mark(self, seen: Iterable[Seen]) -> None:
        entries = tuple(seen)
        if not entries:
            return
        at = self.allocations()
        with self._lock:
            self._marks.append((at, entries))
            # In a steady loop gradients lie at the same addresses in every step: one set, and many marks.
            self._seen += 1 if self._uses[id(entries)] else 1 + len(entries)
            self._uses[id(entries)] += 1
            while self._seen > _MAX_SEEN and len(self._marks) > 1:
                _, oldest = self._marks.popleft()
                self._uses[id(oldest)] -= 1
                self._seen -= 1 if self._uses[id(oldest)] else 1 + len(oldest)
                if not self._uses[id(oldest)]:
                    del self._uses[id(oldest)]

    def _arguments(self, module: Module) -> list[str]:
        kind = type(module)
        if kind not in self._signatures:
            try:
                self._signatures[kind] = list(inspect.signature(module.forward).parameters)
            except (TypeError, ValueError):
                self._signatures[kind] = []
        return self._signatures[kind]


def _as_far_as_possible(seen: Iterator[Seen]) -> list[Seen]:
    """Modules and optimizers may fail when they are asked for their tensors."""
    found: list[Seen] = []
    try:
        found.extend(seen)
    except Exception as error:
        keep(error)
    return found


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
    for number, (name, value) in enumerate(_parts(dict([*named, *kwargs.items()]))):
        if number == _MAX_INPUTS:
            return
        yield name, value


def _parts(values: dict[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among some values, one level deep."""
    for name, value in values.items():
        parts: Iterable[tuple[str, Any]] = [(str(name), value)]
        if isinstance(value, dict):
            parts = [(f"{name}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, (tuple, list)):
            parts = [(f"{name}.{at}", inner) for at, inner in enumerate(value)]
        yield from ((full, inner) for full, inner in parts if isinstance(inner, torch.Tensor))
