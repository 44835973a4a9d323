"""The files of a recording: one set per rank, each written under a temporary name and renamed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import socket
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import torch

from ..interpreter.descriptors import OwnFile
from ..interpreter.system import NO_LINKS, NO_WAITING, is_running

_FLUSH_INTERVAL_SECONDS = 0.5
"""How long a step may wait until it is in the file, which watchers read while the run goes on."""
_BUFFER_BYTES = 1 << 18

_CAREFUL = NO_LINKS | NO_WAITING
_LINES = ("steps.jsonl", "phases.jsonl", "host.jsonl")
_ENDINGS = ("pickle", "labels", "heap", "oom.heap", "growing.heap", *_LINES, "ledger", "ask")
"""Of a rank's files, besides its summary (`json`)."""


class Files:
    """A process's files in a folder: `rankN.*`. The number is chosen when it is first needed, as the rank may not be known
    before. `is_fresh`: the folder holds nothing but this run, so whatever has a number there keeps it."""

    def __init__(self, folder: str, *, is_fresh: bool) -> None:
        self.folder = os.path.abspath(folder)
        self.is_fresh = is_fresh
        self.number: int | None = None
        self._steps: list[str] = []
        self._has_steps = False
        self._flushed_at = 0.0

    def write_pickle(self, ending: str, content: Any) -> None:
        # Protocol 4 is the newest that PyTorch's own viewer reads.
        _replace(self.path(ending), lambda file: pickle.dump(content, file, protocol=4))

    def write_json(self, ending: str, content: Any) -> None:
        text = json.dumps(content, separators=(",", ":"))
        _replace(self.path(ending), lambda file: file.write(text.encode()))

    def rename(self, ending: str, to: str) -> None:
        os.replace(self.path(ending), self.path(to))

    def write_for_all(self, name: str, content: Any) -> None:
        """A file that every rank would write alike."""
        text = json.dumps(content, indent=1)
        _replace(os.path.join(self.folder, name), lambda file: file.write(text.encode()))

    def add_step(self, row: dict[str, Any]) -> str | None:
        """Flushes the file now and then; returns the reason if a dump is requested from outside."""
        self.add_earlier_step(row)
        now = time.monotonic()
        if now - self._flushed_at < _FLUSH_INTERVAL_SECONDS:
            return None
        self._flushed_at = now
        self.flush_steps()
        return self._asked()

    def add_earlier_step(self, row: dict[str, Any]) -> None:
        self._steps.append(json.dumps(row, separators=(",", ":")) + "\n")

    def append(self, ending: str, rows: list[dict[str, Any]]) -> None:
        """Adds lines of JSON to a file that grows while the run goes on."""
        if rows:
            with _opened(self.path(ending), os.O_APPEND) as file:
                file.write("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode())

    def _asked(self) -> str | None:
        """Reason for a dump that another process requests, by leaving a file."""
        try:
            path = self.path("ask")
            # Not what a link or a FIFO leads to.
            with open(path, encoding="utf-8", opener=lambda path, flags: os.open(path, flags | _CAREFUL)) as file:
                reason = file.read(1 << 16).strip()
            os.unlink(path)
        except OSError:
            return None
        return reason or "asked"

    def forget_steps(self) -> None:
        self._steps = []
        self._has_steps = False

    def flush_steps(self) -> None:
        """Steps are added to their file as they come, so that they outlive a process that is killed."""
        lines, self._steps = self._steps, []
        with _opened(self.path("steps.jsonl"), os.O_APPEND if self._has_steps else os.O_TRUNC) as file:
            file.write("".join(lines).encode())
        self._has_steps = True

    @property
    def name(self) -> str | None:
        """What the files begin with, once it is known."""
        return None if self.number is None else f"rank{self.number}"

    def path(self, ending: str) -> str:
        if self.number is None:
            os.makedirs(os.path.dirname(self.folder), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.folder, 0o700)
            rank = launched_as()
            number = self._claim(0) if rank is None else rank
            if rank is not None and self._is_foreign(rank):
                raise FileExistsError(f"`{self.folder}` has files named rank{rank}.* that are not of a recording")
            for stale in _ENDINGS:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(number, stale))
            self.number = number
        return self._path(self.number, ending)

    def _path(self, number: int, ending: str) -> str:
        return os.path.join(self.folder, f"rank{number}.{ending}")

    def _is_foreign(self, number: int) -> bool:
        """Whether files with our names belong to another run. `oomph run` has checked its own folder itself."""
        if self.is_fresh:
            return False
        summary = self._path(number, "json")
        if os.path.lexists(summary):
            return "ended" not in _read(summary)
        return any(os.path.lexists(self._path(number, ending)) for ending in _ENDINGS)

    def _claim(self, number: int) -> int:
        """Without a launcher, the processes of one program take one number after the other."""
        path = self._path(number, "json")
        if self._is_foreign(number):
            return self._claim(number + 1)
        if not self.is_fresh and not _is_in_use(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        try:
            with _opened(path, os.O_EXCL) as file:
                file.write(json.dumps(owner()).encode())
        except FileExistsError:
            return self._claim(number + 1)
        return number


def owner() -> dict[str, Any]:
    """Who writes these files."""
    return {"ended": "running", "pid": os.getpid(), "host": socket.gethostname()}


def launched_as() -> int | None:
    """The rank that a launcher gave this process."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    tasks = os.environ.get("SLURM_NTASKS", "1")
    variables = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", *(["SLURM_PROCID"] if tasks != "1" else [])]
    ranks = [os.environ[variable] for variable in variables if os.environ.get(variable, "").isdigit()]
    return int(ranks[0]) if ranks else None


def _read(path: str) -> dict[str, Any]:
    """What a process has written of itself; empty if it is not that."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_in_use(path: str) -> bool:
    """Whether another process that is still there writes this rank."""
    found = _read(path)
    try:
        if found.get("ended") != "running" or found.get("pid") == os.getpid():
            return False
        if found.get("host") == socket.gethostname():
            return is_running(found["pid"])
    except (KeyError, TypeError, OverflowError):
        return False
    return True


def _opened(path: str, flags: int) -> BinaryIO:
    return io.BufferedWriter(OwnFile(path, flags), _BUFFER_BYTES)


def _replace(path: str, write: Callable[[BinaryIO], object]) -> None:
    temporary = f"{path}.{os.getpid()}.part"
    try:
        with _opened(temporary, os.O_TRUNC) as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
