"""What the programs of the field trials report about themselves, bare and recorded alike.

A program calls `tick` after each step and `done` at its end. Nothing is registered and nothing is wrapped, so the probe is
not part of what the programs try out.
"""

import json
import os
import sys
import time

_ticks = []
_PAUSE = float(os.environ.get("FIELD_PAUSE", "0"))
"""Seconds to stay at each step and at the end, for `oomph attach`: half of them at work in Python, half asleep."""


def _stay():
    end = time.perf_counter() + _PAUSE / 2
    while time.perf_counter() < end:
        pass
    if _PAUSE:
        time.sleep(_PAUSE / 2)


def tick():
    """Notes the end of a step."""
    _stay()
    _ticks.append(time.perf_counter())


def done():
    """Writes the allocator's counters of this process and the time of its end, to a file that the harness reads."""
    folder = os.environ.get("FIELD_SIDE")
    if folder is None:
        return
    _stay()
    found = {"pid": os.getpid(), "ended": time.time(), "steps": [b - a for a, b in zip(_ticks, _ticks[1:])]}
    torch = sys.modules.get("torch")
    # False in a child that was forked after CUDA was initialized, so CUDA is not called there.
    if torch is not None and torch.cuda.is_initialized():
        stats = torch.cuda.memory_stats()
        found["cuda"] = {
            "allocations": stats["allocation.all.allocated"],
            "requested": stats["requested_bytes.all.allocated"],
            "peak_allocated": stats["allocated_bytes.all.peak"],
            "peak_reserved": stats["reserved_bytes.all.peak"],
        }
    with open(os.path.join(folder, f"process{os.getpid()}.json"), "w") as file:
        json.dump(found, file)
