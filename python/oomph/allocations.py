"""The allocations that a piece of code made, out of a snapshot: which line made them, when, and for how long."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .interpreter.frames import is_users_file
from .sizes import format_size


@dataclass(frozen=True)
class Site:
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        if not self.file:
            return "unknown line"
        short = os.path.relpath(self.file)
        return f"{self.file if short.startswith('..') else short}:{self.line} in {self.function}"


@dataclass(eq=False)
class Allocation:
    """One allocation, from its beginning to its free."""

    device: int
    address: int
    size: int
    site: Site
    number: int
    """How many allocations were made before this one, since the beginning of the measurement; -1: it is older."""
    freed_after: int | None = None
    """How many allocations had been made when it was freed. None: it is alive."""
    at_peak: bool = False
    """Whether it was alive when its device held the most."""

    def is_alive_after(self, count: int) -> bool:
        """Whether it was there right after this number of allocations."""
        return self.number < count and (self.freed_after is None or self.freed_after >= count)


@dataclass(frozen=True)
class Share:
    """What one line has of some blocks."""

    site: Site
    size: int
    count: int

    def __str__(self) -> str:
        blocks = "1 block" if self.count == 1 else f"{self.count} blocks"
        return f"{format_size(self.size):>10}  {blocks:<10}  {self.site}"


def allocations(snapshot: dict[str, Any], made: dict[int, int]) -> list[Allocation]:
    """The blocks of each device's last `made` allocations, and older ones that were freed meanwhile."""
    sites: dict[int, Site] = {}
    found = []
    for device, events in enumerate(snapshot["device_traces"]):
        if made.get(device, 0) > 0:
            found += _of_device(device, events, made[device], sites)
    return found


def by_line(blocks: Iterable[Allocation], top: int | None = None) -> list[Share]:
    """The lines that made the blocks, the largest first."""
    sums: dict[Site, list[int]] = {}
    for block in blocks:
        sums.setdefault(block.site, []).append(block.size)
    shares = [Share(site, sum(sizes), len(sizes)) for site, sizes in sums.items()]
    return sorted(shares, key=lambda share: -share.size)[:top]


def alive(snapshot: dict[str, Any]) -> set[tuple[int, int]]:
    """Device and address of every block that is in use."""
    return {
        (segment["device"], block["address"])
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def _of_device(device: int, events: list[dict[str, Any]], made: int, sites: dict[int, Site]) -> list[Allocation]:
    # Negative before the measurement; where the history has lost the first allocations, it begins later.
    number = made - sum(event["action"] == "alloc" for event in events)
    found: list[Allocation] = []
    alive_at: dict[int, Allocation] = {}
    freed_at: dict[Allocation, int] = {}
    held = most_at = most_number = 0
    # Frees just before the first of the allocations may be older than the measurement, and shift all that follows alike.
    most = -math.inf
    for at, event in enumerate(events):
        if event["action"] == "alloc":
            if number >= 0:
                frames = event.get("frames", [])
                # Stacks are shared between events.
                where = sites.get(id(frames)) or sites.setdefault(id(frames), site(frames))
                allocation = alive_at[event["addr"]] = Allocation(device, event["addr"], event["size"], where, number)
                found.append(allocation)
                held += event["size"]
                if held > most:
                    most, most_at, most_number = held, at, number + 1
            number += 1
        elif event["action"] == "free_completed" and number >= 0:
            held -= event["size"]
            freed = alive_at.pop(event["addr"], None)
            if freed is None:
                freed = Allocation(device, event["addr"], event["size"], Site("", 0, ""), -1)
                found.append(freed)
            freed.freed_after = number
            freed_at[freed] = at
    for allocation in found:
        allocation.at_peak = 0 <= allocation.number < most_number and freed_at.get(allocation, len(events)) > most_at
    return found


def site(frames: list[dict[str, Any]]) -> Site:
    """The innermost line that is not a library's; of libraries only, the innermost one."""
    own = (frame for frame in frames if is_users_file(frame["filename"]))
    frame = next(own, frames[0] if frames else None)
    return Site("", 0, "") if frame is None else Site(frame["filename"], frame["line"], frame["name"])
