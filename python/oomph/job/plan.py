"""Which ranks of a job run, as `oomph` has decided it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Note = Callable[[str, str], None]
"""Takes a kind and a text for `oomph` (`Settings.note`)."""


@dataclass(frozen=True)
class JobPlan:
    folder: str
    """Folder that the processes of the run share."""
    gpus: int
    """GPUs of each machine."""
    nodes: int | None = None
    """Machines, if not as many as the launcher says."""
    ranks: list[int] | None = None
    """Ranks that run; `None` for all."""
    style: str = "torchrun"
    """Who tells a process its rank: `torchrun`, `mpi` or `slurm` by their environment variables; `program` for one that was
    written without a launcher and gets those of `torchrun`; `spawn` for one that starts its ranks itself."""
    mesh: dict[str, int] | None = None
    """Dimensions of the program's device mesh, by name, if not those that it asks for."""

    def runs(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks

    def stand_ins(self, ranks: Sequence[int]) -> list[int]:
        """For each rank of a group, the index of the one whose messages count as its own: itself if it runs, otherwise the
        nearest before it that does."""
        running = [index for index, rank in enumerate(ranks) if self.runs(rank)]
        if not running:
            return list(range(len(ranks)))
        found, nearest = [], running[0]
        for index, rank in enumerate(ranks):
            if self.runs(rank):
                nearest = index
            found.append(nearest)
        return found
