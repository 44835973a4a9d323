"""Phases of a program: train, eval, generate, and those that it names itself (`oomph.phase()`): `rankN.phases.jsonl`.

Phases follow each other. One that the program names lasts as long as its `with`; others are recognized by calls of modules and
of serving engines, and last until the next one begins. At each change the counters are read.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..interpreter.dynamo import never_traced
from ..interpreter.errors import keep
from .engines import GENERATE, Engines, called_for
from .files import Files
from .ledger import Ledger, Rows

STARTUP = "startup"
OTHER = "other"
"""After a phase that the program has named, until one is recognized."""
TRAIN = "train"
EVAL = "eval"
_MAX_ROWS = 20_000
_MAX_SHARE = 0.01
_UNPACED_SECONDS = 0.05
"""Share of the time that reading counters may take, once it has taken so long. After that, changes have a time only."""
_FLUSH_INTERVAL_SECONDS = 0.5
_CLOSE_INTERVAL_SECONDS = 1.0
"""How often a phase of the program has its allocations recorded with their stacks, in a loop that repeats itself."""


class Phase:
    """A phase that runs, with its number among all of the run. `is_named`: the program names it."""

    def __init__(self, name: str, number: int, *, is_named: bool) -> None:
        self.name = name
        self.number = number
        self.is_named = is_named


class Phases:
    """`counters` gives what PyTorch counts on each device; `look_closely` has stacks recorded from now on."""

    def __init__(
        self, files: Files, counters: Callable[[], Rows], ledger: Ledger | None, look_closely: Callable[[], None]
    ) -> None:
        self._files = files
        self._counters = counters
        self._ledger = ledger
        self._look_closely = look_closely
        self._engines = Engines(self._engine_began)
        self._named: list[Phase] = []
        """Phases that the program has named and not ended, the innermost last."""
        self._recognized_last = Phase(STARTUP, 0, is_named=False)
        self._count = 0
        self._is_begun = False
        """Whether the process uses its device. Phases may begin before that."""
        self._rows = 0
        self._waiting: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._spent = 0.0
        self._flushed_at = 0.0
        self._looked_at = 0.0
        self._trains_in_eval_mode = False
        self._lock = threading.RLock()
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """The process begins to use its device."""
        self._undo = [self._engines.remove, register_optimizer_step_post_hook(self._stepped).remove]
        self._began = time.monotonic()
        self._is_begun = True
        with self._lock:
            self._note()
        self.look_for_engines()

    def look_for_engines(self) -> None:
        self._engines.install()

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def enter(self, name: str) -> Phase:
        """The program begins a phase."""
        with self._lock:
            self._count += 1
            phase = Phase(name, self._count, is_named=True)
            self._named.append(phase)
            self._note()
        now = time.monotonic()
        if self._is_begun and now - self._looked_at >= _CLOSE_INTERVAL_SECONDS:
            self._looked_at = now
            self._look_closely()
        return phase

    def leave(self, phase: Phase) -> None:
        """The program ends a phase, in whichever thread, and in whichever order."""
        with self._lock:
            if phase in self._named:
                self._named.remove(phase)
                if not self._named:
                    self._count += 1
                    self._recognized_last = Phase(OTHER, self._count, is_named=False)
                self._note()

    def entered(self, module: Module) -> None:
        """A module is called that no other module has called."""
        if self._named:
            return
        if not torch.is_grad_enabled():
            name = called_for(sys._getframe(1)) or EVAL
        elif module.training or self._trains_in_eval_mode:
            name = TRAIN
        else:
            name = EVAL
        self._recognized(name)

    @never_traced
    def _stepped(self, *_: object) -> None:
        """An optimizer has ended a step. Some programs train models whose `training` is off."""
        if self._recognized_last.name == EVAL and not self._named:
            self._trains_in_eval_mode = True
            self._recognized(TRAIN)

    def _engine_began(self, name: str) -> None:
        # One that starts has its batches run by the same method.
        self._recognized(called_for(sys._getframe(1)) or name if name == GENERATE else name)

    def _recognized(self, name: str) -> None:
        if name == self._recognized_last.name or self._named:
            return
        with self._lock:
            self._count += 1
            self._recognized_last = Phase(name, self._count, is_named=False)
            self._note()

    def _note(self) -> None:
        """Writes down which phase runs from now on."""
        if not self._is_begun or self._rows >= _MAX_ROWS:
            return
        self._rows += 1
        phase = self._named[-1] if self._named else self._recognized_last
        began = time.monotonic()
        row: dict[str, Any] = {"time_us": time.time_ns() // 1000}
        if self._spent <= max(_UNPACED_SECONDS, _MAX_SHARE * (began - self._began)):
            rows = self._counters()
            row |= {"devices": rows} if self._ledger is None else self._ledger.read(rows)
        if self._rows < _MAX_ROWS:
            row |= {"phase": phase.name, "number": phase.number, "named": phase.is_named}
        self._waiting.append(row)
        self._spent += time.monotonic() - began
        if self._files.number is not None and began - self._flushed_at >= _FLUSH_INTERVAL_SECONDS:
            self._flushed_at = began
            self.flush()

    def flush(self) -> None:
        """Appends what waits to the file. A file that cannot be written is said elsewhere, where it matters more."""
        with self._lock:
            rows, self._waiting = self._waiting, []
            try:
                self._files.append("phases.jsonl", rows)
            except OSError as error:
                keep(error)
