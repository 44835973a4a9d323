"""Launchers that start only the ranks of a job that run.

`torchrun`, `python -m torch.distributed.run` and `accelerate launch` read their arguments as always; where they would start
their processes, the chosen ranks of all machines are started here instead. The same goes for DeepSpeed's launcher and for
programs that spawn their ranks themselves.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ..interpreter.importing import Report, around_import
from .plan import JobPlan, Note

GRACE_SECONDS = 15.0
"""Time in which the other ranks may end after one has failed."""
_POLL_SECONDS = 0.05
MASTER_PORT = "29500"
"""For programs that print it: the ranks meet in a file."""


def install(plan: JobPlan, note: Note, report: Report) -> None:
    """Waits for the modules of launchers."""
    around_import("torch.distributed.launcher.api", after=lambda module: _torchrun(module, plan, note), report=report)
    around_import("deepspeed.launcher.runner", after=lambda module: _deepspeed(module, plan, note), report=report)


def _torchrun(module: Any, plan: JobPlan, note: Note) -> None:
    def launch_agent(config: Any, entrypoint: Any, args: Sequence[Any]) -> dict[int, Any]:
        size = _size(plan, int(config.nproc_per_node), int(config.max_nodes), note)
        run_id = str(config.run_id or "none")
        if not isinstance(entrypoint, str):
            return _call(size, entrypoint, args, run_id)
        code = _run(size, [entrypoint, *map(str, args)], run_id)
        if code != 0:
            sys.exit(code)
        return {}

    module.launch_agent = launch_agent


class _Size:
    """How many ranks a job has, and which run."""

    def __init__(self, plan: JobPlan, local: int, nodes: int) -> None:
        self.plan, self.local, self.nodes = plan, local, nodes
        self.world = local * nodes

    def running(self) -> list[int]:
        return [rank for rank in range(self.world) if self.plan.runs(rank)]

    def environment(self, rank: int, run_id: str) -> dict[str, str]:
        node, local = divmod(rank, self.local)
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", MASTER_PORT)}
        if self.plan.style == "mpi":
            prefix = "OMPI_COMM_WORLD_"
            own = {"RANK": rank, "SIZE": self.world, "LOCAL_RANK": local, "LOCAL_SIZE": self.local, "NODE_RANK": node}
            also = {"PMI_RANK": rank, "PMI_SIZE": self.world, "MPI_LOCALRANKID": local, "MPI_LOCALNRANKS": self.local}
            return {**common, **{f"{prefix}{name}": str(value) for name, value in own.items()}, **_texts(also)}
        if self.plan.style == "slurm":
            own = {"PROCID": rank, "NTASKS": self.world, "NPROCS": self.world, "LOCALID": local, "NODEID": node}
            sizes = {"NNODES": self.nodes, "JOB_NUM_NODES": self.nodes, "NTASKS_PER_NODE": self.local, "JOB_ID": 1}
            return {**common, **{f"SLURM_{name}": str(value) for name, value in {**own, **sizes}.items()}}
        numbers = {
            "RANK": rank,
            "WORLD_SIZE": self.world,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": self.local,
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": self.nodes,
            "NODE_RANK": node,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": self.world,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        names = {"ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_USE_AGENT_STORE": "False"}
        return {**common, **_texts(numbers), **names}


def _texts(numbers: dict[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in numbers.items()}


def _size(plan: JobPlan, local: int, nodes: int, note: Note) -> _Size:
    size = _Size(plan, local, plan.nodes or nodes)
    note("job", f"{size.nodes} {size.local}")
    missing = [rank for rank in plan.ranks or () if rank >= size.world]
    text = None
    if local > plan.gpus:
        plural = "s" if plan.gpus > 1 else ""
        text = (
            f"the launcher starts {local} processes on each machine, but there are {plan.gpus} GPU{plural}: say `--gpus {local}`"
        )
    elif missing:
        text = f"the job has no rank {missing[0]}: it has {size.world}, 0 to {size.world - 1}"
    if text is not None:
        note("failure", text)
        sys.exit(1)
    # The emulator looks for deadlocks once all of them wait.
    with open(os.path.join(plan.folder, "processes"), "w") as file:
        file.write(str(len(size.running())))
    return size


def _run(size: _Size, command: Sequence[str], run_id: str) -> int:
    """Runs a command as each rank; returns the first exit code that is not 0."""
    processes: dict[int, subprocess.Popen[bytes]] = {}
    for rank in size.running():
        environment = {**os.environ, **size.environment(rank, run_id)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        processes[rank] = subprocess.Popen(list(command), env=environment)
    return _wait({rank: (process.poll, process.send_signal) for rank, process in processes.items()})


def _wait(processes: dict[int, tuple[Callable[[], int | None], Callable[[int], None]]]) -> int:
    first, ends_at = 0, None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _signal_all(processes, signal.SIGTERM))
    while True:
        codes = {rank: poll() for rank, (poll, _) in processes.items()}
        failed = [code for code in codes.values() if code not in (None, 0)]
        if failed and first == 0:
            first, ends_at = int(failed[0] or 0), time.monotonic() + GRACE_SECONDS
        if all(code is not None for code in codes.values()):
            return first if first >= 0 else 128 - first
        if ends_at is not None and time.monotonic() > ends_at:
            _signal_all(processes, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _signal_all(processes: dict[int, tuple[Callable[[], int | None], Callable[[int], None]]], number: int) -> None:
    for poll, send in processes.values():
        if poll() is None:
            send(number)


def _call(size: _Size, function: Any, args: Sequence[Any], run_id: str) -> dict[int, Any]:
    """Runs a function as each rank, for programs that use the launcher as a library."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    processes = {}
    for rank in size.running():
        process = context.Process(target=_called, args=(size.environment(rank, run_id), function, tuple(args)))
        process.start()
        processes[rank] = process

    def kill(process: Any, number: int) -> None:
        os.kill(process.pid, number)

    code = _wait({rank: (lambda of=of: of.exitcode, functools.partial(kill, of)) for rank, of in processes.items()})  # type: ignore[misc]
    if code != 0:
        sys.exit(code)
    return {}


def _called(environment: dict[str, str], function: Any, args: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    function(*args)


def _deepspeed(module: Any, plan: JobPlan, note: Note) -> None:
    """DeepSpeed's launcher asks its machines for their GPUs; the number comes from `--gpus` where it is not given."""

    def main(args: Any = None) -> None:
        found = module.parse_args(args)
        local = int(found.num_gpus) if int(getattr(found, "num_gpus", -1)) > 0 else plan.gpus
        nodes = int(found.num_nodes) if int(getattr(found, "num_nodes", -1)) > 0 else 1
        size = _size(plan, local, nodes, note)
        command = [] if getattr(found, "no_python", False) else [sys.executable, "-u"]
        if getattr(found, "module", False):
            command.append("-m")
        code = _run(size, [*command, found.user_script, *found.user_args], "none")
        if code != 0:
            sys.exit(code)

    module.main = main


def install_spawn(plan: JobPlan, note: Note) -> None:
    """Prepares programs that spawn a process for each GPU, once torch is imported."""
    # The package has a function of the same name.
    of: Any = import_module("torch.multiprocessing.spawn")
    start: Callable[..., Any] = of.start_processes

    @functools.wraps(start)
    def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **named: Any) -> Any:
        # These are not the ranks of the job.
        if nprocs < 2 or nprocs != plan.gpus or plan.style not in ("program", "spawn"):
            return start(fn, args, nprocs, *more, **named)
        if plan.style == "program":
            # It was started as one of the ranks, but starts them itself: `oomph` runs it again, by itself.
            note("spawns", "")
            sys.exit(0)
        size = _size(plan, nprocs, 1, note)
        return start(ChosenRanks(fn, size.running()), args, len(size.running()), *more, **named)

    of.start_processes = start_processes
    import torch.multiprocessing as multiprocessing

    if getattr(multiprocessing, "start_processes", None) is start:
        multiprocessing.start_processes = start_processes  # type: ignore[attr-defined]


class ChosenRanks:
    """The function of a spawned process, called with the rank that it is to be."""

    def __init__(self, function: Callable[..., Any], ranks: list[int]) -> None:
        self.function, self.ranks = function, ranks

    def __call__(self, index: int, *args: Any) -> Any:
        # The recorder names its files by it.
        os.environ.setdefault("RANK", str(self.ranks[index]))
        return self.function(self.ranks[index], *args)
