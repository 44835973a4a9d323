"""Techniques that make the batches smaller: half of each, or two halves for each step of the optimizer.

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
    """Halves the batches of every `DataLoader` that the program makes."""

    def __init__(self) -> None:
        self.changes: dict[tuple[int, int], None] = {}
        self.reasons: dict[str, None] = {}
        self.halved: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        construct = DataLoader.__init__
        signature = inspect.signature(construct)
        loaders = self

        @functools.wraps(construct)
        def __init__(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(self, *args, **kwargs)
            loaders._halve(self, bound.arguments)
            construct(*bound.args, **bound.kwargs)
            if getattr(self, "batch_sampler", None) is not None:
                loaders.halved.add(self.batch_sampler)

        DataLoader.__init__ = __init__  # type: ignore[method-assign]

    @property
    def reason(self) -> str:
        """Why there are no smaller batches."""
        if self.reasons:
            return listed(self.reasons)
        return "the program makes its batches itself; use --vary with an argument that sets the batch size"

    @property
    def outcome(self) -> str:
        return listed(f"batches of {new} instead of {old}" for old, new in self.changes)

    def _halve(self, loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
        # Accelerate makes a loader from the program's, which is halved already.
        if type(loader).__module__.startswith("accelerate."):
            return
        sampler = arguments.get("batch_sampler")
        if sampler is not None:
            self._halve_sampler(sampler)
            return
        size = arguments.get("batch_size", 1)
        if self._can_halve(size):
            arguments["batch_size"] = self._half(size)

    def _halve_sampler(self, sampler: Any) -> None:
        if sampler in self.halved:
            return
        if not isinstance(sampler, BatchSampler):
            self.reasons[f"the batches are made by the program's own {type(sampler).__name__}"] = None
        elif self._can_halve(sampler.batch_size):
            sampler.batch_size = self._half(sampler.batch_size)

    def _can_halve(self, size: int | None) -> bool:
        if size is None:
            self.reasons["the dataset makes the batches itself"] = None
        elif size < 2:
            self.reasons["the DataLoader's batches have one sample"] = None
        return size is not None and size >= 2

    def _half(self, size: int) -> int:
        self.changes[size, size // 2] = None
        return size // 2


class SmallerBatches(Technique):
    """Batches of half the size."""

    def __init__(self) -> None:
        self.loaders = Loaders()

    def install(self) -> None:
        self.loaders.install()

    def outcome(self) -> str:
        return self.loaders.outcome if self.loaders.changes else refused(self.loaders.reason)


class Accumulate(Technique):
    """Two batches of half the size for each step: every second `step()` and what belongs to it does nothing."""

    def __init__(self) -> None:
        self.loaders = Loaders()
        self.pending: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Optimizers that hold the gradients of a first half."""
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
        if self.has_skipped:
            return f"{self.loaders.outcome}, two for each step of the optimizer"
        if self.loaders.changes and self.closures:
            return refused(f"{listed(self.closures)} computes a batch several times in each step")
        if self.loaders.changes:
            return refused("no optimizer took two steps")
        return refused(self.loaders.reason)

    def _watch_optimizers(self) -> None:
        construct = torch.optim.Optimizer.__init__
        technique = self

        @functools.wraps(construct)
        def __init__(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            construct(self, *args, **kwargs)
            technique._skip_every_second(type(self))

        torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]

    def _skip_every_second(self, kind: type[torch.optim.Optimizer]) -> None:
        step = kind.step
        if getattr(step, "every_second", False):
            return

        @functools.wraps(step)
        def every_second_step(optimizer: torch.optim.Optimizer, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._is_first_half(optimizer):
                return self._step(step, optimizer, closure, *args, **kwargs)
            self.has_skipped = True
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.pending.add(optimizer)
            return loss

        every_second_step.every_second = True  # type: ignore[attr-defined]
        kind.step = every_second_step  # type: ignore[method-assign, assignment]

    def _is_first_half(self, optimizer: torch.optim.Optimizer) -> bool:
        if not self.loaders.changes or optimizer in self.stepping or optimizer in self.pending:
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
                self.pending.discard(optimizer)

    def _is_pending(self, module: torch.nn.Module) -> bool:
        """Whether a first half's gradients belong to a module's parameters."""
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
