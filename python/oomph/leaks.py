"""`check_leaks(fn)`: what stays in memory after a call, for a REPL, a notebook or a test."""

from __future__ import annotations

import gc
import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .allocations import Allocation, Share, alive, allocations, by_line
from .gauge import CpuGauge, CudaGauge, Gauge
from .sizes import format_size


class LeakError(AssertionError):
    """A callable leaves memory behind at every call."""


@dataclass(frozen=True)
class LeakCheck:
    """What a callable leaves behind. It is true if there is a leak: `if check_leaks(step): ...`."""

    device: str
    """`GPU` or `CPU`: where the tensors were measured."""
    repeat: int
    verdict: str
    """`grows` with the calls, `settles` after the first ones (a cache that fills), or `flat`."""
    bytes_per_call: int
    tensors_per_call: float
    """Of the later half of the calls, like the bytes: the first ones fill caches."""
    kept: int
    """Bytes that all measured calls together leave."""
    lines: tuple[Share, ...]
    """Who allocated what stays. Where memory grows: what stays of the later half of the calls, all of them together."""
    garbage_per_call: int
    """Bytes that only the garbage collector frees: they are in reference cycles."""
    garbage_lines: tuple[Share, ...]
    after_call: tuple[int, ...]
    """Bytes above the start, after each call; without garbage."""

    def __bool__(self) -> bool:
        return self.verdict == "grows"

    def raise_if_leaking(self) -> None:
        if self:
            raise LeakError(str(self))

    def __str__(self) -> str:
        text = [self._headline(), *_listed(self.lines)]
        if self.garbage_per_call > 0:
            text += [self._garbage_headline(), *_listed(self.garbage_lines)]
        return "\n".join(text)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(self._headline())}</b></p>", _table(self.lines)]
        if self.garbage_per_call > 0:
            parts += [f"<p>{html.escape(self._garbage_headline())}</p>", _table(self.garbage_lines)]
        return "".join(parts)

    def _headline(self) -> str:
        if self.verdict == "grows":
            tensors = f"{self.tensors_per_call:g} tensor{'' if self.tensors_per_call == 1 else 's'}"
            calls = f"of the last {self.repeat - self.repeat // 2} calls these stay"
            return f"grows {format_size(self.bytes_per_call)} and {tensors} a call on the {self.device}; {calls}:"
        if self.verdict == "settles":
            return f"settles: {format_size(self.kept)} stay on the {self.device}, and later calls add nothing:"
        return f"flat: {self.repeat} calls leave nothing more on the {self.device}"

    def _garbage_headline(self) -> str:
        return f"{format_size(self.garbage_per_call)} a call are freed only by the garbage collector (reference cycles):"


def check_leaks(fn: Callable[..., Any], *args: Any, repeat: int = 10, warmup: int = 3, **kwargs: Any) -> LeakCheck:
    """Calls `fn(*args, **kwargs)` again and again, and says which memory stays.

    `warmup` calls come first: models and libraries allocate things once. Measured is the GPU if the callable uses one by
    then, otherwise the tensors on the CPU. A recording that is on stays on.
    """
    if repeat < 2:
        raise ValueError(f"expected at least 2 for `repeat`, found {repeat}")
    for _ in range(warmup):
        fn(*args, **kwargs)
    # The warm-up has made cuBLAS's workspaces: taken away now, they would come back in the first call that counts.
    gauge: Gauge = CudaGauge(without_workspaces=False) if _used_gpus() else CpuGauge()
    gauge.start()
    # Cycles stay until we look, so that every run gives the same answer.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        posts = Posts(gauge)
        posts.set()
        for _ in range(repeat):
            fn(*args, **kwargs)
            posts.set()
        with_garbage = gauge.snapshot()
        blocks = posts.without_posts(allocations(with_garbage, gauge.allocations()))
        gc.collect()
        garbage = alive(with_garbage) - alive(gauge.snapshot())
    finally:
        if was_enabled:
            gc.enable()
        gauge.stop()
    return _check("GPU" if isinstance(gauge, CudaGauge) else "CPU", posts.counts, blocks, garbage)


class Posts:
    """Tiny allocations between the calls: a history says the order of events, but nothing else of when they were."""

    def __init__(self, gauge: Gauge) -> None:
        self.counts: list[dict[int, int]] = []
        """Allocations by the end of each call; the first: before all calls."""
        self._gauge = gauge
        self._devices = _used_gpus() if isinstance(gauge, CudaGauge) else ["cpu"]
        self._tensors: list[torch.Tensor] = []

    def set(self) -> None:
        self._tensors = [torch.empty(1, dtype=torch.uint8, device=device) for device in self._devices]
        self.counts.append(self._gauge.allocations())

    def without_posts(self, blocks: list[Allocation]) -> list[Allocation]:
        posts = {(device, count - 1) for counts in self.counts for device, count in counts.items()}
        return [block for block in blocks if (block.device, block.number) not in posts]


def _used_gpus() -> list[str]:
    if not torch.cuda.is_initialized():
        return []
    devices = range(torch.cuda.device_count())
    return [f"cuda:{at}" for at in devices if torch.cuda.memory_stats(at).get("allocation.all.allocated", 0)]


def _check(device: str, counts: list[dict[int, int]], blocks: list[Allocation], garbage: set[tuple[int, int]]) -> LeakCheck:
    """The verdict, from the number of allocations after each call and the blocks that were allocated."""
    repeat = len(counts) - 1
    middle = repeat // 2
    later = repeat - middle
    in_cycles = {block for block in blocks if block.freed_after is None and (block.device, block.address) in garbage}
    held = [[block for block in _after(count, blocks) if block not in in_cycles] for count in counts]
    sizes = [sum(block.size for block in held[at]) for at in range(repeat + 1)]
    growth = sizes[-1] - sizes[middle]
    kept = sizes[-1] - sizes[0]
    verdict = "grows" if growth > 0 else "settles" if kept > 0 else "flat"
    since = counts[middle] if verdict == "grows" else counts[0]
    stays = [block for block in held[-1] if not _is_before(block, since)] if verdict != "flat" else []
    # A line that stays with its last call only keeps its newest result, which is not growth.
    growing = {block.site for block in stays if _is_before(block, counts[-2])}
    return LeakCheck(
        device=device,
        repeat=repeat,
        verdict=verdict,
        bytes_per_call=round(max(growth, 0) / later),
        tensors_per_call=max(len(held[-1]) - len(held[middle]), 0) / later,
        kept=max(kept, 0),
        lines=tuple(by_line(block for block in stays if block.site in growing or not growing)),
        garbage_per_call=round(sum(block.size for block in in_cycles) / repeat),
        garbage_lines=tuple(by_line(in_cycles)),
        after_call=tuple(size - sizes[0] for size in sizes[1:]),
    )


def _after(counts: dict[int, int], blocks: list[Allocation]) -> list[Allocation]:
    return [block for block in blocks if block.is_alive_after(counts.get(block.device, 0))]


def _is_before(block: Allocation, counts: dict[int, int]) -> bool:
    return block.number < counts.get(block.device, 0)


def _listed(shares: Iterable[Share]) -> list[str]:
    return [f"  {share}" for share in shares]


def _table(shares: Iterable[Share]) -> str:
    rows = "".join(
        f"<tr><td>{format_size(share.size)}</td><td>{share.count}</td><td>{html.escape(str(share.site))}</td></tr>"
        for share in shares
    )
    return f"<table><tr><th>bytes</th><th>blocks</th><th>line</th></tr>{rows}</table>" if rows else ""
