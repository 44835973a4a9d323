"""Records a process's CUDA memory: PyTorch's own history, the steps, and how the run ended.

Three files for each rank, written to a temporary name and renamed: `rankN.pickle`, a snapshot as `_dump_snapshot` writes
it, `rankN.steps.jsonl`, the counters at the end of each step, and `rankN.json`, how the run went.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import sys
import threading
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any

import torch

from . import techniques, values
from .settings import Settings
from .steps import Steps


HERE = os.path.dirname(os.path.abspath(__file__))

MOST_EVENTS = 2_000_000
"""Bound on the history that PyTorch keeps."""


def install(settings: Settings, library: ctypes.CDLL | None) -> None:
    Recorder(settings, library).install()


class Recorder:
    def __init__(self, settings: Settings, library: ctypes.CDLL | None) -> None:
        self.settings = settings
        self.library = library
        self.steps = Steps(settings.steps, self._stop)
        self.exception: str | None = None
        self.started = False
        self.lock = threading.Lock()
        self.written = False

    def install(self) -> None:
        self._replace_users_recorder()
        torch.cuda._lazy_call(self._start)
        self.steps.install()
        self._watch_exceptions()

    def _start(self) -> None:
        """When the process initialises CUDA: one that never does has nothing to record."""
        # Not at frees: reading a stack there loses an exception that is on its way (checkpointing stops its recomputation
        # with one, and PyTorch then fails with a SystemError).
        self.record(enabled="all", context="alloc", stacks="python", max_entries=MOST_EVENTS)
        self.started = True
        # Unlike `atexit`, this also runs in processes that multiprocessing has started, and only there where we are now.
        Finalize(None, self._at_exit, exitpriority=0)

    def _replace_users_recorder(self) -> None:
        """A program that records itself must not end or restart our history; its own dumps work all the same."""
        self.record = torch.cuda.memory._record_memory_history

        def ignored(*_args: Any, **_kwargs: Any) -> None:
            # Recording is one of the ways to initialise CUDA.
            torch.cuda.init()

        torch.cuda.memory._record_memory_history = ignored

    def _watch_exceptions(self) -> None:
        say = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.exception = f"{kind.__name__}: {error}"
            say(kind, error, trace)

        sys.excepthook = hook

    def _stop(self, reason: str) -> None:
        """Ends the program at the end of a step, as if it had come to its end."""
        self._write(reason)
        # Not by an exception: the program might catch it, or save a checkpoint on the way out.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _at_exit(self) -> None:
        self._write("failed" if self.exception else "finished")

    def _write(self, ended: str) -> None:
        with self.lock:
            if self.written or not self.started:
                return
            self.written = True
        try:
            snapshot = torch.cuda.memory._snapshot()
            _leave_out_own_frames(snapshot)
            # Protocol 4 is the newest that PyTorch's own viewer reads.
            _replace(self._path("pickle"), pickle.dumps(snapshot, protocol=4))
            del snapshot
            rows = "".join(json.dumps(row) + "\n" for row in self.steps.rows)
            _replace(self._path("steps.jsonl"), rows.encode())
            _replace(self._path("json"), json.dumps(self._summary(ended)).encode())
        except Exception as error:
            print(f"oomph: the recording could not be written: {error}", file=sys.stderr)

    def _path(self, ending: str) -> str:
        return os.path.join(self.settings.output, f"rank{_rank()}.{ending}")

    def _summary(self, ended: str) -> dict[str, Any]:
        return {
            "torch": torch.__version__,
            "ended": ended,
            "exception": self.exception,
            "steps": {"count": len(self.steps.rows)},
            "techniques": techniques.applied(),
            "reads": [vars(read) for read in values.reads()],
            "values": values.AVAILABLE,
            "inductor": "torch._inductor.compile_fx" in sys.modules,
            "devices": [{"outside": self._outside(device)} for device in range(torch.cuda.device_count())],
        }

    def _outside(self, device: int) -> int | None:
        """Bytes that the context and libraries take, where the stand-in knows them."""
        if self.library is None:
            return None
        self.library.oomph_pretend_outside.restype = ctypes.c_uint64
        return int(self.library.oomph_pretend_outside(device))


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def _leave_out_own_frames(snapshot: dict[str, Any]) -> None:
    """Takes our own code out of the recorded stacks: it stands between an operator and the line that calls it."""
    done: set[int] = set()
    blocks = (block for segment in snapshot["segments"] for block in segment["blocks"])
    events = (event for trace in snapshot["device_traces"] for event in trace)
    for entry in (*snapshot["segments"], *blocks, *events):
        # Stacks are shared between entries.
        frames = entry.get("frames")
        if not frames or id(frames) in done:
            continue
        done.add(id(frames))
        own = [at for at, frame in enumerate(frames) if frame["filename"].startswith(HERE)]
        if own:
            # What our code calls (`OpOverload.redispatch`) stands in front of it: frames are innermost first.
            called = {at - 1 for at in own if at and frames[at - 1]["name"] == "redispatch"}
            frames[:] = [frame for at, frame in enumerate(frames) if at not in called and at not in own]


def _replace(path: str, content: bytes) -> None:
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(content)
    os.replace(temporary, path)
