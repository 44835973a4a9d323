"""What a recorder needs of a device's history, whichever device it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

MAX_EVENTS = 1_000_000
"""Bound on the history that is kept, unless another is given."""
EVENTS_PER_ALLOCATION = 3
"""The allocation, and its free, which is requested and completed."""


@dataclass
class LiveStack:
    """What one stack has allocated and is still there. `frames` as `torch.cuda.memory._snapshot()` gives them."""

    device: int
    frames: list[dict[str, Any]]
    bytes: int = 0
    count: int = 0


class History(Protocol):
    kind: str
    """`cuda` or `cpu`."""
    max_events: int
    """The most that are kept."""
    has_own_frames: bool
    """Whether our own code is in recorded stacks, between an operator and the line that calls it."""
    can_read_stacks_at_frees: bool
    """Whether PyTorch may read stacks at frees if the program asks for that. Where exceptions pass through functions of ours,
    they would be lost there."""

    has_live_stacks: bool
    """Whether `live_stacks` can tell anything."""

    @property
    def mark(self) -> Callable[[str], None]:
        """Sets what later events of this thread say of where the program was. Not before the history has begun."""

    @property
    def marked(self) -> Callable[[], str]:
        """Gets what they say now."""

    def start(self, begun: Callable[[], None], marked_by_program: Callable[[], None]) -> None:
        """`begun` is called when it has begun; `marked_by_program` if the program itself says where it is."""

    def look(self) -> None:
        """Sees what is alive now, for a snapshot without a history. Leaves nothing in place."""

    def stop(self) -> None: ...

    def abandon(self) -> None:
        """In a process that was forked: takes what `start` has put in place out again, and calls nothing of the device."""

    def fresh(self) -> History:
        """One that has not begun yet, for a process that was forked before this one had."""

    def snapshot(self) -> dict[str, Any]:
        """Everything so far, as `torch.cuda.memory._snapshot()` gives it."""

    def record_stacks(self, *, wanted: bool) -> bool:
        """Whether the events from now on have their stacks: as `wanted`, where there is a choice."""

    def live_snapshot(self) -> dict[str, Any]:
        """The same without the events, where that takes less time."""

    def allocations(self) -> dict[int, int]:
        """How many allocations each device has made so far."""

    def counters(self) -> list[dict[str, int]]:
        """The counters of each device, as in `rankN.steps.jsonl`."""

    def settings(self) -> dict[str, Any] | None:
        """The allocator's settings as the program has changed them, as in `rankN.json`; `None` if it has not."""

    def live_stacks(self) -> list[LiveStack] | None:
        """What is alive now by the stack that allocated it, without the events; `None` where PyTorch cannot say."""
