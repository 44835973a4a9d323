"""Memory of tensor storages on the CPU as blocks, and the events of their lives in a bounded ring.

The events have the shape of `torch.cuda.memory._snapshot()`. Every block is a segment of its own, because that is how the
CPU allocator works: it gets each storage from the system and gives it back. Sizes are the storages' own, not rounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any

from .history import LiveStack
from .stacks import Stack, Stacks

EVENTS_OF_ALLOC = ("segment_alloc", "alloc")
EVENTS_OF_FREE = ("free_requested", "free_completed", "segment_free")


class Block:
    """A range of memory that is in use. Several storages can share one, if they are views of foreign memory."""

    __slots__ = ("address", "alive", "members", "size", "stack")

    def __init__(self, address: int, size: int, stack: Stack) -> None:
        self.address = address
        self.size = size
        self.stack = stack
        self.members = 1
        self.alive = True


Change = tuple[tuple[str, ...], int, int, int, str, "Stack | None"]
"""A block that came or went: actions, address, size, time, mark, stack. A plain tuple, for its speed: two per tensor."""


class Blocks:
    """The blocks that are alive, which never overlap, and the changes that led to them."""

    def __init__(self, max_events: int) -> None:
        self.max_events = max_events
        self.stacks = Stacks()
        self.count = 0
        """Allocations so far."""
        self.requested = 0
        """Bytes of all of them."""
        self.allocated = 0
        """Bytes that are alive."""
        self.peak = 0
        self._changes: deque[Change] = deque()
        self._events = 0
        self._starts: list[int] = []
        self._at: dict[int, Block] = {}

    def alloc(self, address: int, size: int, owned: bool, time_us: int, mark: str) -> Block:
        """The block of a storage that is new. `owned`: PyTorch itself allocated its memory."""
        for other in self._overlapping(address, size):
            if not owned:
                # Another view of memory that is counted already, as `from_numpy` makes it.
                other.members += 1
                return other
            # The storage that was here is gone and only has not said so yet, or was a view of this one.
            self.free(other, time_us, mark)
        block = self._add(Block(address, size, self.stacks.capture()))
        self.count += 1
        self.requested += size
        self._append((EVENTS_OF_ALLOC, address, size, time_us, mark, block.stack))
        return block

    def found(self, address: int, size: int) -> Block:
        """The block of a storage that was there before the history: it has no event and no stack."""
        for other in self._overlapping(address, size):
            other.members += 1
            return other
        return self._add(Block(address, size, Stack(None)))

    def _add(self, block: Block) -> Block:
        self._starts.insert(bisect_right(self._starts, block.address), block.address)
        self._at[block.address] = block
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def release(self, block: Block, time_us: int, mark: str) -> None:
        """One storage of the block is gone."""
        block.members -= 1
        if block.members == 0 and block.alive:
            self.free(block, time_us, mark)

    def free(self, block: Block, time_us: int, mark: str) -> None:
        block.alive = False
        del self._starts[bisect_right(self._starts, block.address) - 1]
        del self._at[block.address]
        self.allocated -= block.size
        self._append((EVENTS_OF_FREE, block.address, block.size, time_us, mark, None))

    def forget(self) -> None:
        """Leaves out the events so far."""
        self._changes.clear()
        self._events = 0

    def reset_peak(self) -> None:
        self.peak = self.allocated

    def snapshot(self) -> dict[str, Any]:
        self.stacks.resolve()
        return {
            "segments": [_segment(self._at[address]) for address in self._starts],
            "device_traces": [[event for change in self._changes for event in _events(change)]],
            "allocator_settings": {},
            "external_annotations": [],
            "oomph": {"device": "cpu"},
        }

    def live_stacks(self) -> list[LiveStack]:
        self.stacks.resolve()
        found: dict[int, LiveStack] = {}
        for block in self._at.values():
            stack = found.setdefault(id(block.stack.frames), LiveStack(0, block.stack.frames))
            stack.bytes += block.size
            stack.count += 1
        return list(found.values())

    def _append(self, change: Change) -> None:
        self._changes.append(change)
        self._events += len(change[0])
        while self._events > self.max_events:
            self._events -= len(self._changes.popleft()[0])

    def _overlapping(self, address: int, size: int) -> list[Block]:
        starts = self._starts
        first = last = bisect_right(starts, address)
        if first > 0:
            before = self._at[starts[first - 1]]
            if before.address + before.size > address:
                first -= 1
        while last < len(starts) and starts[last] < address + size:
            last += 1
        return [self._at[start] for start in starts[first:last]] if first < last else []


def _events(change: Change) -> Iterator[dict[str, Any]]:
    actions, address, size, time_us, mark, stack = change
    for action in actions:
        event: dict[str, Any] = {"action": action, "addr": address, "size": size, "stream": 0}
        event |= {"time_us": time_us, "compile_context": "N/A", "user_metadata": mark}
        if stack is not None:
            event["frames"] = stack.frames
        yield event


def _segment(block: Block) -> dict[str, Any]:
    where = {"address": block.address, "requested_size": block.size, "frames": block.stack.frames}
    return {
        **where,
        "device": 0,
        "stream": 0,
        "total_size": block.size,
        "allocated_size": block.size,
        "active_size": block.size,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": [{**where, "size": block.size, "state": "active_allocated"}],
    }
