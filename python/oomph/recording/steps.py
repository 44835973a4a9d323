"""Where a program's steps are.

A step is what the program says one is. If it says nothing, it is what an optimizer's `step()` ends. A program without an
optimizer takes a step with each call of an outermost module: a batch of inference.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Steps:
    """Calls `ended` at the end of each step. `is_explicit`: only the program's own word counts."""

    def __init__(self, ended: Callable[[], None], *, is_explicit: bool) -> None:
        self.ended = ended
        self._is_explicit = is_explicit
        self._has_optimizer = False
        self._first: int | None = None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        self._has_optimizer = any(issubclass(kind, torch.optim.Optimizer) for kind in set(map(type, gc.get_objects())))
        construct = torch.optim.Optimizer.__init__
        steps = self

        def __init__(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            steps._has_optimizer = True
            construct(self, *args, **kwargs)

        def undo() -> None:
            if torch.optim.Optimizer.__init__ is __init__:
                torch.optim.Optimizer.__init__ = construct  # type: ignore[method-assign]

        torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]
        self._undo = [undo, register_optimizer_step_post_hook(self._after_optimizer).remove]

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def step(self) -> None:
        """The program says itself that a step has ended: from now on only its own word counts."""
        self._is_explicit = True
        self.ended()

    def after_outermost(self) -> None:
        """A module has run that no other has called."""
        if not self._has_optimizer and not self._is_explicit:
            self.ended()

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._has_optimizer = True
        # Of several optimizers (a generator's, a discriminator's) the first one counts.
        if self._first is None:
            self._first = id(optimizer)
        if self._first == id(optimizer) and not self._is_explicit:
            self.ended()
