"""The Ray engine of `oomph fleet`: tasks of a cluster summarize the ranks of a job, each on the node that it runs on.

A task gets the path of a file, runs `oomph summarize` there, and returns the summary, an Arrow file of at most some 100 KB.
`python -m oomph.ray_engine FOLDER URI…` writes the summaries of a job to a folder, from which `oomph fleet FOLDER` answers.
The tasks use nothing but the standard library, so that a node needs the program `oomph` and nothing else of ours.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_MAX_RETRIES = 3
"""How often Ray runs a task again whose process or node is gone, or whose command failed."""
_TASKS_PER_CPU = 4
"""Tasks that wait in the cluster for each of its processors: bounds what the driver and the object store hold."""
_CONNECT_TIMEOUT_SECONDS = 10.0
_PROGRESS_INTERVAL_SECONDS = 0.2
_EXIT_WITHOUT_RAY = 3
"""Exit code that the command line explains."""


class SummarizeError(Exception):
    """The command of a task failed."""


@dataclass
class Outcome:
    """What became of the tasks."""

    count: int = 0
    """Files of the job."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Files whose tasks failed for good, and why."""
    lost_nodes: int = 0
    """Nodes that were there in the beginning, and not in the end. Their tasks ran on others."""


def summarize(uris: Sequence[str], folder: str, report: Callable[[int, int], None] = lambda done, count: None) -> Outcome:
    """Writes a summary of each rank to `folder`. `report` gets how many of the ranks are done.

    Uses the cluster that this process is connected to, that of `RAY_ADDRESS`, or a new one on this machine. Raises ImportError
    without Ray, and ValueError with the command's message if there is nothing to read.
    """
    import ray

    program = _own_program()
    sources = _listed(program, uris)
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray)
    try:
        # By value: what a node has of our package, if anything, may be older.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        try:
            return _run(ray, program, sources, folder, report)
        finally:
            ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    finally:
        if is_ours:
            ray.shutdown()


def _connect(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address:
        _check(address)
        ray.init(address=address, **options)
    else:
        ray.init(address="local", include_dashboard=False, **options)


def _check(address: str) -> None:
    """Raises ConnectionError if nothing listens there: Ray itself would try for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():
        return  # `auto`, or a name that Ray looks up
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nothing answers at `{address}` (`RAY_ADDRESS`): {error}") from error


def _run(ray: Any, program: list[str], sources: list[str], folder: str, report: Callable[[int, int], None]) -> Outcome:
    version = _version_of(program)
    options = {"max_retries": _MAX_RETRIES, "retry_exceptions": True, "num_cpus": 1}
    task = ray.remote(_summary_of).options(scheduling_strategy="SPREAD", **options)
    nodes = _alive(ray)
    outcome = Outcome(count=len(sources))
    digits = max(6, len(str(len(sources))))
    waiting: dict[Any, int] = {}
    rest = iter(enumerate(sources))
    report(0, len(sources))
    done = 0
    while True:
        room = max(1, int(ray.cluster_resources().get("CPU", 1)) * _TASKS_PER_CPU) - len(waiting)
        for _, (number, source) in zip(range(room), rest):
            waiting[task.remote(source, os.getcwd(), program, version)] = number
        if not waiting:
            break
        finished, _ = ray.wait(list(waiting), num_returns=1)
        for reference in finished:
            number = waiting.pop(reference)
            path = os.path.join(folder, f"{number:0{digits}}")
            try:
                _write(f"{path}.summary.arrow", ray.get(reference))
            except ray.exceptions.RayError as error:
                reason = _one_line(error)
                outcome.failed.append((sources[number], reason))
                _write(f"{path}.failed.json", json.dumps({"source": sources[number], "error": reason}).encode())
            done += 1
            report(done, len(sources))
    outcome.lost_nodes = len(nodes - _alive(ray))
    return outcome


def _summary_of(source: str, folder: str, program: list[str], version: str) -> bytes:
    """The task: runs on a node of the cluster. A path as the user gave it is relative to the driver's folder."""
    command = [*_program_here(tuple(program), version), "summarize", "--for-fleet", source, "-o", "-"]
    is_relative = "://" not in source and not os.path.isabs(source)
    if is_relative and not os.path.isdir(folder):
        raise SummarizeError(f"{socket.gethostname()} has no folder `{folder}`: give paths that all nodes have")
    cwd = folder if is_relative else None
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, cwd=cwd)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise SummarizeError(f"`oomph summarize` failed on {socket.gethostname()}: {lines[0]}")
    return done.stdout


@functools.cache
def _program_here(program: tuple[str, ...], version: str) -> list[str]:
    """The program `oomph` of this node, in the driver's version: another one might count differently."""
    found = []
    for candidate in ([*program], [sys.executable, "-m", "oomph"], ["oomph"]):
        if shutil.which(candidate[0]) is None:
            continue
        there = _version_of(candidate)
        if there == version:
            return candidate
        found += [there] if there else []
    others = f"; found {', '.join(found)}" if found else ""
    raise SummarizeError(f"{socket.gethostname()} has no `{version}`{others}: install it there")


def _own_program() -> list[str]:
    program = os.environ.get("OOMPH")
    return [os.path.abspath(program)] if program else [sys.executable, "-m", "oomph"]


def _version_of(program: Sequence[str]) -> str:
    """Empty if it does not run."""
    try:
        done = subprocess.run([*program, "--version"], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _listed(program: list[str], uris: Sequence[str]) -> list[str]:
    """Files of the ranks, in the order of the answer."""
    command = [*program, "fleet", "--list", *uris]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"`oomph fleet --list` ended with exit code {done.returncode}")
    return [str(file["source"]) for file in json.loads(done.stdout)["files"]]


def _alive(ray: Any) -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _one_line(error: Exception) -> str:
    """Why a task failed for good: what the command said, or what Ray says of the process."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause if isinstance(cause, Exception) else error).splitlines()]
    return next(filter(None, lines), type(error).__name__)


def _write(path: str, content: bytes) -> None:
    with open(f"{path}.part", "wb") as file:
        file.write(content)
    os.replace(f"{path}.part", path)


class _Progress:
    """A line on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = 0.0
        self._is_shown = sys.stderr.isatty()

    def __call__(self, done: int, count: int) -> None:
        now = time.monotonic()
        if not self._is_shown or (done < count and now - self._shown < _PROGRESS_INTERVAL_SECONDS):
            return
        self._shown = now
        rate = done / max(now - self._began, 1e-9)
        left = f", {(count - done) / rate:.0f} s left" if rate > 0 else ""
        words = f"reading on Ray: {done:,} of {count:,} ranks, {rate:.1f} per second{left}"
        sys.stderr.write(f"\r\x1b[K{words}" if done < count else "\r\x1b[K")
        sys.stderr.flush()


def notes(outcome: Outcome) -> Iterable[str]:
    """What went wrong and was dealt with, a line each. Files that failed are in the answer as well."""
    if outcome.lost_nodes:
        nodes = "1 node" if outcome.lost_nodes == 1 else f"{outcome.lost_nodes:,} nodes"
        yield f"{nodes} of the Ray cluster went away; the others read its ranks"
    if outcome.failed:
        source, reason = outcome.failed[0]
        yield f"{len(outcome.failed):,} of {outcome.count:,} ranks could not be read on Ray; the first is `{source}`: {reason}"


def main(arguments: Sequence[str]) -> int:
    folder, *uris = arguments
    # Ray prints on standard output, where the command's answer goes.
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        outcome = summarize(uris, folder, _Progress())
    except ImportError as error:
        if error.name != "ray":
            raise
        return _EXIT_WITHOUT_RAY
    except ValueError as error:
        # The command's own words.
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception as error:
        sys.stderr.write(f"error: Ray did not run the tasks\n  cause: {_one_line(error)}\n")
        sys.stderr.write("  hint: check `RAY_ADDRESS`, or unset it to use this machine alone\n")
        return 1
    for note in notes(outcome):
        sys.stderr.write(f"note: {note}\n")
    return 0


if __name__ == "__main__":
    # Under its own name, which tasks and exceptions are known by.
    from oomph.ray_engine import main as run

    sys.exit(run(sys.argv[1:]))
