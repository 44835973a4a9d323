"""Where this process is in its job: the job's ID, its node, its rank, and its index in each dimension of parallelism.

Everything is read from variables and objects that are there already. Nothing is imported, and no collective is called.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import torch

from .dimensions import dimensions, groups
from .files import launched_as

_JOB_IDS = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "COBALT_JOBID",
    "AWS_BATCH_JOB_ID",
    "CLOUD_ML_JOB_ID",
    "TRAINING_JOB_NAME",
    "RAY_JOB_ID",
    # In pods of Kubernetes: what the operator of the job, or the job's own manifest, has set.
    "KUBERNETES_JOB_NAME",
    "VC_JOB_NAME",
    "PET_RDZV_ID",
    "TORCHELASTIC_RUN_ID",
)
"""Variables that identify a job: of the scheduler first, because a job may start `torchrun` several times."""
_NO_IDS = ("", "none", "None")
"""What `torchrun` sets if nobody has given the job an ID."""
_NODES = ("SLURMD_NODENAME", "NODE_NAME", "K8S_NODE_NAME")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_MAX_TEXT = 256
"""Characters of an ID or a node's name that are kept."""


class JobPlace:
    """Keeps what was seen last: a program may destroy its process groups before it ends."""

    def __init__(self) -> None:
        self._seen_groups = 0
        self._rank: int | None = None
        self._world_size: int | None = None
        self._dimensions: list[dict[str, Any]] = []

    def look(self) -> None:
        """Looks at the process groups if there are others than the last time."""
        count = len(groups())
        if count == self._seen_groups:
            return
        self._seen_groups = count
        if count == 0 or not torch.distributed.is_initialized():
            return
        self._rank = int(torch.distributed.get_rank())
        self._world_size = int(torch.distributed.get_world_size())
        found = dimensions()
        # Groups that are destroyed one by one leave fewer and fewer.
        if len(found) >= len(self._dimensions):
            self._dimensions = found

    def as_json(self) -> dict[str, Any] | None:
        """`None` for a process that belongs to no job and has no others with it."""
        self.look()
        rank = launched_as() if self._rank is None else self._rank
        world_size = _number(_WORLD_SIZES) if self._world_size is None else self._world_size
        job = _text(_JOB_IDS)
        if job is None and rank is None and (world_size or 1) <= 1:
            return None
        return {
            "id": job,
            "node": _text(_NODES) or socket.gethostname(),
            "rank": rank,
            "local_rank": _number(_LOCAL_RANKS),
            "world_size": world_size,
            "dimensions": self._dimensions,
        }


def _text(variables: tuple[str, ...]) -> str | None:
    found = (os.environ.get(name, "") for name in variables)
    return next((value[:_MAX_TEXT] for value in found if value not in _NO_IDS), None)


def _number(variables: tuple[str, ...]) -> int | None:
    # Slurm sets its own also for a single process, which may be the launcher of the others.
    is_task = os.environ.get("SLURM_NTASKS", "1") != "1"
    found = (os.environ.get(name, "") for name in variables if is_task or not name.startswith("SLURM"))
    return next((int(value) for value in found if value.isdecimal() and value.isascii()), None)
