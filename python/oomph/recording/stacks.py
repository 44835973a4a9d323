"""Python stacks, cheap to capture and shared where they are equal.

Capturing takes only the code objects and positions; turning them into file names and lines waits, and is done for many
stacks at once. What is then kept is one list of frames for each distinct stack, so a long recording of a loop holds no
more stacks than its code has.
"""

from __future__ import annotations

import os
from typing import Any

import torch

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Our own code stands between an operator and the line that calls it; it never belongs in a stack."""

_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_BETWEEN = frozenset(os.path.join(_TORCH, *parts) for parts in (("_ops.py",), ("_compile.py",), ("_dynamo", "eval_frame.py")))
"""What PyTorch puts between our code and what calls it, or what it calls."""

MAX_PENDING = 16_384
"""Stacks whose frames are not named yet: each holds a few hundred bytes until then."""
MAX_DISTINCT = 100_000
"""Beyond it the table is cleared: a program that generates code must not grow it forever."""

Frames = list[dict[str, Any]]


class Stack:
    """One captured stack. `frames` is there after `Stacks.resolve`."""

    __slots__ = ("frames", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.frames: Frames = []


class Stacks:
    def __init__(self) -> None:
        self._pending: list[Stack] = []
        self._distinct: dict[tuple[tuple[str, int, str], ...], Frames] = {}
        self._gather = torch._C._profiler.gather_traceback

    def capture(self) -> Stack:
        """The Python stack of the calling thread, innermost first."""
        stack = Stack(self._gather(True, False, False))
        self._pending.append(stack)
        if len(self._pending) >= MAX_PENDING:
            self.resolve()
        return stack

    def resolve(self) -> None:
        """Gives every captured stack its frames."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        # Equal frames are the same object within one answer: most stacks are recognised without a look at names.
        seen: dict[tuple[int, ...], Frames] = {}
        answers = torch._C._profiler.symbolize_tracebacks([stack.raw for stack in pending])
        for stack, frames in zip(pending, answers):
            key = tuple(map(id, frames))
            shared = seen.get(key)
            if shared is None:
                shared = seen[key] = self._share(_without_own(frames))
            stack.frames, stack.raw = shared, None

    def _share(self, frames: Frames) -> Frames:
        if len(self._distinct) >= MAX_DISTINCT:
            self._distinct.clear()
        key = tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames)
        return self._distinct.setdefault(key, frames)


def leave_out_own_frames(snapshot: dict[str, Any]) -> None:
    """Takes our own code out of the recorded stacks: it stands between an operator and the line that calls it."""
    # Millions of entries share a few thousand stacks.
    traces = [*snapshot["device_traces"], snapshot.get("host_traces", [])]
    stacks = {id(stack): stack for trace in traces for event in trace if (stack := event.get("frames"))}
    for segment in (*snapshot["segments"], *snapshot.get("host_segments", [])):
        for entry in (segment, *segment["blocks"]):
            if stack := entry.get("frames"):
                stacks[id(stack)] = stack
    for stack in stacks.values():
        own = [at for at, frame in enumerate(stack) if _is_own(frame)]
        if own:
            # What our code calls (`OpOverload.redispatch`) comes before it: frames are innermost first.
            called = {at - 1 for at in own if at and stack[at - 1]["name"] == "redispatch"}
            stack[:] = [frame for at, frame in enumerate(stack) if at not in called and at not in own]


def _without_own(frames: Frames) -> Frames:
    """The frames without ours, and without those that PyTorch adds around ours at the inner end."""
    inner = 0
    while inner < len(frames) and (_is_own(frames[inner]) or frames[inner]["filename"] in _BETWEEN):
        inner += 1
    return [frame for frame in frames[inner:] if not _is_own(frame)]


def _is_own(frame: dict[str, Any]) -> bool:
    return bool(frame["filename"].startswith(PACKAGE))
