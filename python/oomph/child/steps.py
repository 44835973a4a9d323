"""Where a program's steps are, and when enough of them have been seen.

A step is what an optimizer's `step()` ends. A program without an optimizer takes a step with each call of an outermost
module: a batch of inference.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

REPEATS = 3
"""So many equal steps in a row are a period."""
FEWEST = 20
"""Steps before a period ends the run: evaluations and leaks show themselves late."""
MOST = 200
"""Steps after which a run without a period ends as well."""


class Steps:
    def __init__(self, limit: int | None, stop: Callable[[str], None]) -> None:
        self.limit = limit
        self.stop = stop
        self.rows: list[dict[str, int]] = []
        self.first: int | None = None
        self.depth = 0
        self.hooks: list[RemovableHandle] = []

    def install(self) -> None:
        construct = torch.optim.Optimizer.__init__
        steps = self

        def __init__(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            steps._forget_forwards()
            construct(self, *args, **kwargs)

        torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]
        register_optimizer_step_post_hook(self._after_optimizer)
        # Hooks, not a wrapper around the call: a wrapper would stand in the recorded stacks.
        self.hooks = [
            module.register_module_forward_pre_hook(self._before_forward),
            module.register_module_forward_hook(self._after_forward, always_call=True),
        ]

    def _forget_forwards(self) -> None:
        """With an optimizer, its steps count."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def _before_forward(self, *_: Any) -> None:
        self.depth += 1

    def _after_forward(self, *_: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            self._end()

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # Of several optimizers (a generator's, a discriminator's) the first one counts.
        if self.first is None:
            self.first = id(optimizer)
        if self.first == id(optimizer):
            self._end()

    def _end(self) -> None:
        if not torch.cuda.is_initialized():
            return
        self.rows.append(_row())
        count = len(self.rows)
        if self.limit is not None:
            if count == self.limit:
                self.stop("steps")
        elif count >= FEWEST and self._repeats():
            self.stop("periodic")
        elif count >= MOST:
            self.stop("long")

    def _repeats(self) -> bool:
        """Whether the last steps made the same requests and left the same amount behind."""
        last = self.rows[-REPEATS - 1 :]
        changes = [{key: b[key] - a[key] for key in a if key != "time_us"} for a, b in itertools.pairwise(last)]
        return len(changes) == REPEATS and all(change == changes[0] for change in changes)


def _row() -> dict[str, int]:
    """Counters of all devices together, at the end of a step."""
    row = {"time_us": time.time_ns() // 1000, "allocated": 0, "reserved": 0, "allocations": 0, "requested": 0}
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        if stats:
            row["allocated"] += stats["allocated_bytes.all.current"]
            row["reserved"] += stats["reserved_bytes.all.current"]
            row["allocations"] += stats["allocation.all.allocated"]
            row["requested"] += stats["requested_bytes.all.allocated"]
    return row
