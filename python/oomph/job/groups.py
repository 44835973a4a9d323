"""Process groups of a job in which not all ranks run.

NCCL groups are PyTorch's own, on the emulator's NCCL, which knows who runs (`store.py`). Groups for tensors on the CPU connect
to every rank when they are made, so they become groups of one process, and their collectives are done here
(`cpu_collectives.py`). What the program says about its ranks, by groups and device meshes, is noted for `oomph`, which finds
the ranks that are alike by it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.distributed

from ..interpreter.importing import Report, around_import
from . import cpu_collectives, layout
from .plan import JobPlan, Note
from .store import GroupStore

dist: Any = torch.distributed
_kept: list[Any] = []
"""Stores of process groups: C++ calls their Python methods for as long as the groups exist."""


def install(plan: JobPlan, note: Note, report: Report) -> None:
    """Prepares a process that has just imported torch."""
    if not dist.is_available():
        return
    # One rank writes the ID of a communicator, however large it is.
    os.environ.setdefault("TORCH_NCCL_RANKS_PER_ROOT", str(1 << 20))
    # Its thread asks the store in the background, also while the interpreter shuts down.
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    from torch.distributed import distributed_c10d as c10d

    # The package has a function of the same name.
    _replace_store(import_module("torch.distributed.rendezvous"), plan)
    _replace_groups(c10d, plan, note)
    around_import("torch.distributed.device_mesh", after=lambda module: layout.install(module, plan, note), report=report)


def _replace_store(rendezvous: ModuleType, plan: JobPlan) -> None:
    """The ranks meet in a file: nobody waits for those that do not run, and any of the others may come first."""
    count = 0

    def _create_c10d_store(hostname: Any, port: Any, rank: Any, world_size: int, timeout: Any, *_: Any, **__: Any) -> Any:
        nonlocal count
        count += 1
        # Of several calls, each has a store of its own, as with a new server.
        store = dist.FileStore(os.path.join(plan.folder, f"store-{count}"), world_size)
        store.set_timeout(timeout)
        return store

    rendezvous._create_c10d_store = _create_c10d_store  # type: ignore[attr-defined]


def _replace_groups(c10d: Any, plan: JobPlan, note: Note) -> None:
    make_group: Callable[..., Any] = c10d._new_process_group_helper

    def _new_process_group_helper(
        group_size: int, group_rank: int, global_ranks_in_group: list[int], *args: Any, **kwargs: Any
    ) -> Any:
        ranks = [int(rank) for rank in global_ranks_in_group] or list(range(group_size))
        note("group", json.dumps({"name": kwargs.get("group_desc"), "ranks": ranks}))
        found = make_group(group_size, group_rank, global_ranks_in_group, *args, **kwargs)
        if isinstance(found, tuple) and isinstance(found[0], dist.ProcessGroup):
            # Larger than those of one rank: PyTorch's own functions use it for what follows the creation.
            cpu_collectives.register(found[0], found[1], ranks, plan)
        return found

    c10d._new_process_group_helper = _new_process_group_helper
    # A communicator that is split asks all of its ranks what becomes of them.
    c10d._get_split_source = lambda group: None
    _replace_split(c10d)
    if dist.is_nccl_available():
        nccl: Any = c10d.ProcessGroupNCCL

        class ProcessGroupNCCL(nccl):  # type: ignore[misc]
            def __init__(self, store: Any, rank: int, size: int, options: Any, *args: Any) -> None:
                ranks = [int(of) for of in getattr(options, "global_ranks_in_group", [])] or list(range(size))
                store = GroupStore(store, ranks, plan, note, str(getattr(options, "group_name", "")))
                _kept.append(store)
                super().__init__(store, rank, size, options, *args)

        ProcessGroupNCCL.__qualname__ = nccl.__qualname__
        ProcessGroupNCCL.__module__ = nccl.__module__
        c10d.ProcessGroupNCCL = ProcessGroupNCCL
        if getattr(dist, "ProcessGroupNCCL", None) is nccl:
            dist.ProcessGroupNCCL = ProcessGroupNCCL
    if dist.is_gloo_available():
        gloo: Any = c10d.ProcessGroupGloo

        class ProcessGroupGloo(gloo):  # type: ignore[misc]
            def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
                super().__init__(dist.HashStore(), 0, 1, *args, **kwargs)

        ProcessGroupGloo.__qualname__ = gloo.__qualname__
        ProcessGroupGloo.__module__ = gloo.__module__
        c10d.ProcessGroupGloo = ProcessGroupGloo
        if getattr(dist, "ProcessGroupGloo", None) is gloo:
            dist.ProcessGroupGloo = ProcessGroupGloo
        cpu_collectives.install(torch._C._distributed_c10d.ProcessGroup)


def _replace_split(c10d: Any) -> None:
    """The parts of a split group are made one by one, by the ranks of each that run."""
    original = getattr(c10d, "split_group", None)
    if original is None:
        return

    @functools.wraps(original)
    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
    ) -> Any:
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        members = c10d.get_process_group_ranks(parent_pg)
        parts = [[members[rank] for rank in sorted(part)] for part in split_ranks]
        groups = [c10d.new_group(part, timeout=timeout, pg_options=pg_options, group_desc=group_desc) for part in parts]
        rank = c10d.get_rank()
        return next((group for group, part in zip(groups, parts, strict=True) if rank in part), None)

    c10d.split_group = split_group
    modules: list[Any] = [dist, sys.modules.get("torch.distributed.device_mesh")]
    for module in modules:
        if getattr(module, "split_group", None) is original:
            module.split_group = split_group
