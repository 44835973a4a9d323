"""Techniques that make the batches smaller: a part of each, or all parts of it for each step of the optimizer.

Only a `DataLoader` can be asked for smaller batches. A tensor that the program makes itself has its size from somewhere
in the program, and whatever else is made from the same number would not fit any more.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from .technique import Technique, listed, refused


class Loaders:
    """Divides the batches of every `DataLoader` that the program makes."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.changes: dict[tuple[int, int], None] = {}
        self.reasons: dict[str, None] = {}
        self.divided: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        construct = DataLoader.__init__
        signature = inspect.signature(construct)
        loaders = self

        @functools.wraps(construct)
        def __init__(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(self, *args, **kwargs)
            loaders._divide(self, bound.arguments)
            construct(*bound.args, **bound.kwargs)
            if getattr(self, "batch_sampler", None) is not None:
                loaders.divided.add(self.batch_sampler)

        DataLoader.__init__ = __init__  # type: ignore[method-assign]

    @property
    def reason(self) -> str:
        """Why there are no smaller batches."""
        if self.reasons:
            return listed(self.reasons)
        return "the program makes its batches itself; `oomph predict --vary` tries other values of its arguments"

    @property
    def outcome(self) -> str:
        return listed(f"batches of {new} instead of {old}" for old, new in self.changes)

    def _divide(self, loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
        # Accelerate makes a loader from the program's, which is divided already.
        if type(loader).__module__.startswith("accelerate."):
            return
        sampler = arguments.get("batch_sampler")
        if sampler is not None:
            self._divide_sampler(sampler)
            return
        size = arguments.get("batch_size", 1)
        if self._can_divide(size):
            arguments["batch_size"] = self._part(size)

    def _divide_sampler(self, sampler: Any) -> None:
        if sampler in self.divided:
            return
        if not isinstance(sampler, BatchSampler):
            self.reasons[f"the batches are made by the program's own {type(sampler).__name__}"] = None
        elif self._can_divide(sampler.batch_size):
            sampler.batch_size = self._part(sampler.batch_size)

    def _can_divide(self, size: int | None) -> bool:
        if size is None:
            self.reasons["the dataset makes the batches itself"] = None
        elif size < 2:
            self.reasons["the DataLoader's batches have one sample"] = None
        elif size < self.parts:
            self.reasons[f"the DataLoader's batches have {size} samples"] = None
        return size is not None and size >= self.parts

    def _part(self, size: int) -> int:
        self.changes[size, size // self.parts] = None
        return size // self.parts


class SmallerBatches(Technique):
    """Batches of half the size."""

    def __init__(self) -> None:
        self.loaders = Loaders(2)

    def install(self) -> None:
        self.loaders.install()

    def outcome(self) -> str:
        return self.loaders.outcome if self.loaders.changes else refused(self.loaders.reason)


class Accumulate(Technique):
    """Several small batches for each step: all but every second (or third, ...) `step()`, and what belongs to them, do
    nothing."""

    def __init__(self, parts: int) -> None:
        self.loaders = Loaders(parts)
        self.pending: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        """Optimizers that hold the gradients of some parts of a batch, and of how many."""
        self.stepping: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.has_skipped = False
        self.closures: dict[str, None] = {}

    def install(self) -> None:
        self.loaders.install()
        self._watch_optimizers()
        torch.optim.Optimizer.zero_grad = self._unless(  # type: ignore[method-assign]
            torch.optim.Optimizer.zero_grad, lambda optimizer: optimizer in self.pending
        )
        torch.nn.Module.zero_grad = self._unless(torch.nn.Module.zero_grad, self._is_pending)  # type: ignore[method-assign]

    def outcome(self) -> str:
        parts = self.loaders.parts
        if self.has_skipped:
            return f"{self.loaders.outcome}, {'two' if parts == 2 else parts} for each step of the optimizer"
        if self.loaders.changes and self.closures:
            return refused(f"{listed(self.closures)} computes a batch several times in each step")
        if self.loaders.changes:
            return refused(f"no optimizer took {'two' if parts == 2 else parts} steps")
        return refused(self.loaders.reason)

    def _watch_optimizers(self) -> None:
        construct = torch.optim.Optimizer.__init__
        technique = self

        @functools.wraps(construct)
        def __init__(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            construct(self, *args, **kwargs)
            technique._skip_most_steps(type(self))

        torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]

    def _skip_most_steps(self, kind: type[torch.optim.Optimizer]) -> None:
        step = kind.step
        if getattr(step, "skips", False):
            return

        @functools.wraps(step)
        def last_step(optimizer: torch.optim.Optimizer, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._waits(optimizer):
                return self._step(step, optimizer, closure, *args, **kwargs)
            self.has_skipped = True
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.pending[optimizer] = self.pending.get(optimizer, 0) + 1
            return loss

        last_step.skips = True  # type: ignore[attr-defined]
        kind.step = last_step  # type: ignore[method-assign, assignment]

    def _waits(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether more parts of the batch have to come before the step."""
        if not self.loaders.changes or optimizer in self.stepping:
            return False
        if self.pending.get(optimizer, 0) + 1 >= self.loaders.parts:
            return False
        if isinstance(optimizer, torch.optim.LBFGS):
            self.closures[type(optimizer).__name__] = None
            return False
        return True

    def _step(self, step: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        # A subclass may call the step of its base.
        outermost = optimizer not in self.stepping
        self.stepping.add(optimizer)
        try:
            return step(optimizer, *args, **kwargs)
        finally:
            if outermost:
                self.stepping.discard(optimizer)
                self.pending.pop(optimizer, None)

    def _is_pending(self, module: torch.nn.Module) -> bool:
        """Whether gradients of a part of a batch belong to a module's parameters."""
        if not self.pending:
            return False
        held = {id(each) for optimizer in self.pending for group in optimizer.param_groups for each in group["params"]}
        return any(id(parameter) in held for parameter in module.parameters())

    @staticmethod
    def _unless(zero_grad: Callable[..., None], is_pending: Callable[[Any], bool]) -> Callable[..., None]:
        @functools.wraps(zero_grad)
        def unless_pending(self: Any, *args: Any, **kwargs: Any) -> None:
            if not is_pending(self):
                zero_grad(self, *args, **kwargs)

        return unless_pending
