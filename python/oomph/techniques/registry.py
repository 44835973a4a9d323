"""Memory-saving techniques, switched on from outside a program.

What a technique saves depends on the program, so the honest answer is to run the program with it. Nobody should have to
edit a program for that: everything here hooks into what all programs do, the call of an outermost module
(forwards.py, checkpointing.py), the construction of a `DataLoader` (batches.py) and of an optimizer (optimizers.py), and does
there what its author would write. Where that is not possible the program runs unchanged, and the reason is reported.

`expandable`, a setting of the allocator, is an environment variable and not in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..interpreter.dynamo import never_compile
from ..interpreter.importing import Report
from .batches import Accumulate, SmallerBatches
from .checkpointing import Checkpoint
from .forwards import Amp, Bf16, Forwards, Offload
from .observing import Observe
from .optimizers import Adafactor, ForeachOff, Fused, SetToNone
from .technique import Technique

_installed: dict[str, Technique] = {}


def install(names: list[str], report: Report | None = None) -> None:
    """Switches techniques on; without names it leaves everything alone. Failures of ours go to `report`."""
    if not names:
        return
    # They stand between the program and PyTorch, where `torch.compile` would compile them too.
    never_compile(__package__, report)
    forwards = Forwards()
    kinds: dict[str, Callable[[str], Technique]] = {
        "amp": lambda _: Amp(forwards),
        "checkpoint": lambda which: Checkpoint(forwards, _indexes(which)),
        "batch/2": lambda _: SmallerBatches(),
        "accumulate": lambda parts: Accumulate(int(parts or 2)),
        "set-to-none": lambda _: SetToNone(),
        "fused": lambda _: Fused(),
        "foreach-off": lambda _: ForeachOff(give_way="fused" in names),
        "adafactor": lambda _: Adafactor(),
        "offload": lambda _: Offload(forwards),
        "bf16": lambda _: Bf16(forwards),
        "observe": lambda _: Observe(forwards),
    }
    for name in names:
        kind, _, setting = name.partition(":")
        if kind in kinds and name not in _installed:
            _installed[name] = kinds[kind](setting)
            _installed[name].install()


def _indexes(text: str) -> frozenset[int] | None:
    """The numbers of `0-3.7`; all, without a text."""
    if not text:
        return None
    ends = [[int(end) for end in part.split("-")] for part in text.split(".")]
    return frozenset(index for first, *last in ends for index in range(first, (last or [first])[0] + 1))


def applied() -> dict[str, str]:
    """For each technique that was asked for: what was done, or why it could not be."""
    return {name: technique.outcome() for name, technique in _installed.items()}


def observed() -> dict[str, Any] | None:
    """What a change would touch, if it was asked for (observing.py)."""
    observer = _installed.get("observe")
    return observer.observed() if isinstance(observer, Observe) else None
