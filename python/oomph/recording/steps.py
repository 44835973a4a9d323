"""Where a program's steps are.

A step is what the program says one is. If it says nothing, it is what an optimizer's `step()` ends. A program without an
optimizer takes a step with each call of an outermost module: a batch of inference.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..interpreter.dynamo import never_traced

_STEPS_FOR_NEW_PHASE = 8
"""This many steps of another optimizer in a row, without the counted one, begin a new phase of the program."""


class Steps:
    """Calls `ended` at the end of each step, and `begins_anew` if what was counted so far were none.

    `is_explicit`: only the program's own word counts.
    """

    def __init__(self, ended: Callable[[], None], begins_anew: Callable[[], None], *, is_explicit: bool) -> None:
        self.ended = ended
        self.begins_anew = begins_anew
        self._is_explicit = is_explicit
        self._has_optimizer = False
        self.counts_modules = False
        """Whether the steps so far were calls of modules."""
        self._counted: weakref.ref[torch.optim.Optimizer] | None = None
        self._others = 0
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._kinds_before: set[type] = set()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        self._kinds_before = _prepared_kinds()
        self._undo = [register_optimizer_step_post_hook(self._after_optimizer).remove]

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    @never_traced
    def step(self) -> None:
        """The program says itself that a step has ended: from now on only its own word counts."""
        self._is_explicit = True
        self._forget_modules()
        self.ended()

    @never_traced
    def after_outermost(self) -> None:
        """A module has run that no other has called."""
        if not self._is_explicit and not self._has_an_optimizer():
            self.counts_modules = True
            self.ended()

    def _has_an_optimizer(self) -> bool:
        """Whether the program has created the first optimizer of some class: that is when PyTorch prepares the `step` of the
        class."""
        if not self._has_optimizer:
            self._has_optimizer = not _prepared_kinds() <= self._kinds_before
        return self._has_optimizer

    def _forget_modules(self) -> None:
        """What ran before the first step of an optimizer was no inference but the first part of that step."""
        if self.counts_modules:
            self.counts_modules = False
            self.begins_anew()

    @never_traced
    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._has_optimizer = True
        if self._is_explicit:
            return
        self._forget_modules()
        # Of several optimizers (a generator's, a discriminator's) the first one counts, as long as it is used.
        counted = None if self._counted is None else self._counted()
        if counted is not optimizer:
            self._others += 1
            is_new = optimizer not in self._known
            if is_new:
                self._known.add(optimizer)
            if counted is not None and self._others < _STEPS_FOR_NEW_PHASE and not (is_new and _replaces(optimizer, counted)):
                return
            self._counted = weakref.ref(optimizer)
        self._others = 0
        self.ended()


def _replaces(new: torch.optim.Optimizer, old: torch.optim.Optimizer) -> bool:
    """Whether both change the same parameters: each task, or each phase, has an optimizer of its own."""
    return not _parameters(new).isdisjoint(_parameters(old))


def _parameters(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _prepared_kinds() -> set[type]:
    """Classes of optimizers that have had an instance."""
    found: set[type] = set()
    kinds: list[type] = [torch.optim.Optimizer]
    while kinds:
        kind = kinds.pop()
        if hasattr(getattr(kind, "step", None), "hooked"):
            found.add(kind)
        kinds += type.__subclasses__(kind)
    return found
