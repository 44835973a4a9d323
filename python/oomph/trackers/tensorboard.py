"""TensorBoard."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

from ..interpreter.objects import instances
from .metrics import PREFIX, Reading
from .tracker import GrowingMemory, MakeReport

_MODULE = "torch.utils.tensorboard.writer"


class TensorboardWriter:
    """A `SummaryWriter`."""

    name = "TensorBoard"

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, reading: Reading) -> None:
        if self._is_open():
            for name, value in reading.flat().items():
                self._writer.add_scalar(name, value, reading.step)

    def leak(self, leak: GrowingMemory) -> None:
        if self._is_open():
            self._writer.add_text(PREFIX + "leak", leak.message, leak.step)

    def report(self, step: int, report: MakeReport) -> None:
        if self._is_open():
            # As a block of code in Markdown, which keeps the columns.
            self._writer.add_text(PREFIX + "report", textwrap.indent(report().text, "    "), step)
            self._writer.flush()

    def _is_open(self) -> bool:
        """A writer that is written to after `close()` would begin another file."""
        return getattr(self._writer, "all_writers", self) is not None


def only_writer() -> TensorboardWriter | None:
    """The writer that the program has open, if it has one; which of several is meant cannot be known."""
    if _MODULE not in sys.modules:
        return None
    writers = map(TensorboardWriter, instances(sys.modules[_MODULE].SummaryWriter))
    found = [each for each in writers if each._is_open()]
    return found[0] if len(found) == 1 else None
