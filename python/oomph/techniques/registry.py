"""Memory-saving techniques, switched on from outside a program.

What a technique saves depends on the program, so the honest answer is to run the program with it. Nobody should have to
edit a program for that: everything here hooks into what all programs do, the call of an outermost module
(forwards.py, checkpointing.py), the construction of a `DataLoader` (batches.py) and of an optimizer (optimizers.py), and does
there what its author would write. Where that is not possible the program runs unchanged, and the reason is reported.

`expandable`, a setting of the allocator, is an environment variable and not in here.
"""

from __future__ import annotations

from collections.abc import Callable

from ..interpreter.dynamo import never_compile
from ..interpreter.importing import Report
from .batches import Accumulate, SmallerBatches
from .checkpointing import Checkpoint
from .forwards import Amp, Bf16, Forwards, Offload
from .optimizers import ForeachOff, Fused, SetToNone
from .technique import Technique

_installed: dict[str, Technique] = {}


def install(names: list[str], report: Report | None = None) -> None:
    """Switches techniques on; without names it leaves everything alone. Failures of ours go to `report`."""
    if not names:
        return
    # They stand between the program and PyTorch, where `torch.compile` would compile them too.
    never_compile(__package__, report)
    forwards = Forwards()
    kinds: dict[str, Callable[[], Technique]] = {
        "amp": lambda: Amp(forwards),
        "checkpoint": lambda: Checkpoint(forwards),
        "batch/2": SmallerBatches,
        "accumulate": Accumulate,
        "set-to-none": SetToNone,
        "fused": Fused,
        "foreach-off": lambda: ForeachOff(give_way="fused" in names),
        "offload": lambda: Offload(forwards),
        "bf16": lambda: Bf16(forwards),
    }
    for name in names:
        if name in kinds and name not in _installed:
            _installed[name] = kinds[name]()
            _installed[name].install()


def applied() -> dict[str, str]:
    """For each technique that was asked for: what was done, or why it could not be."""
    return {name: technique.outcome() for name, technique in _installed.items()}
