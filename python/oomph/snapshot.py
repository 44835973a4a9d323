"""Snapshots, and what can be asked about them."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal

from oomph import _native
from oomph.answers import Check, Device, Difference, Finding, Peak, Report, Search, Simulation, Verification, peak
from oomph.notebook import timeline

Path = str | os.PathLike[str]
Size = int | str
"""Bytes, or text such as `24GiB`."""


def load(paths: Path | Iterable[Path]) -> "Snapshot":
    """Reads a snapshot: whatever `oomph report` takes. Several paths, a folder or a glob are the ranks of one job.

    Nothing in the file is executed. Raises FileNotFoundError, PermissionError and so on for files that cannot be opened,
    and ValueError for those that are not snapshots.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not several:
        raise ValueError("no snapshots were given")
    return Snapshot(_native.load(several))


class Snapshot:
    """A recorded run in memory. Made by `oomph.load`."""

    def __init__(self, native: _native.Snapshot) -> None:
        self._native = native

    @property
    def files(self) -> tuple[str, ...]:
        """The files that were read."""
        return tuple(self._native.files)

    @cached_property
    def ranks(self) -> tuple["Snapshot", ...]:
        """Each file by itself; one that was loaded alone is its own only rank."""
        ranks = self._native.ranks
        return (self,) if len(ranks) == 1 else tuple(Snapshot(rank) for rank in ranks)

    @cached_property
    def _at_peak(self) -> Report:
        return self.report(at="peak")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device of every file; what is live is listed for its peak."""
        return self._at_peak.devices

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, device by device."""
        return self._at_peak.findings

    @cached_property
    def peak(self) -> Peak:
        """The highest point, of the device that has it."""
        return peak(self.devices)

    def report(
        self,
        *,
        at: Literal["peak", "oom", "end"] | int | None = None,
        by: Literal["site", "category", "stack", "size", "module"] | None = None,
        top: int | None = None,
    ) -> Report:
        """`oomph report`: what is wrong, and what was live at a moment (the last OOM, otherwise the peak)."""
        return Report(
            lambda as_json: self._native.report(as_json, at=at, by=by, top=top),
            lambda: json.loads(self._native.timeline(timeline.COLUMNS)),
        )

    def simulate(
        self,
        conf: str | None = None,
        *,
        gpu: Size | None = None,
        non_pytorch: Size | None = None,
        fraction: float | None = None,
        limit: Size | None = None,
        smallest_gpu: bool = False,
        torch: str | None = None,
        recorded_conf: str | None = None,
        device: int | None = None,
        output: Path | None = None,
    ) -> Simulation:
        """`oomph simulate`: this run under other settings, on a GPU of another size, or with a limit.

        `output` gets the replayed run as a snapshot. For `torch` and `recorded_conf`, which change how the recording is
        understood, the file is read again.
        """

        def ask(json: bool) -> tuple[str, list[str]]:
            return self._native.simulate(
                json,
                conf=conf,
                gpu=gpu,
                non_pytorch=non_pytorch,
                fraction=fraction,
                limit=limit,
                smallest_gpu=smallest_gpu,
                torch=torch,
                recorded_conf=recorded_conf,
                device=device,
                # The text is rendered later, and must not write the file a second time.
                output=output if json else None,
            )

        return Simulation(ask)

    def search(
        self,
        *,
        gpu: Size | None = None,
        non_pytorch: Size | None = None,
        limit: Size | None = None,
        smallest_gpu: bool = False,
        device: int | None = None,
    ) -> Search:
        """`oomph simulate --search`: tries the settings that matter and ranks them."""

        def ask(json: bool) -> tuple[str, list[str]]:
            return self._native.simulate(
                json, search=True, gpu=gpu, non_pytorch=non_pytorch, limit=limit, smallest_gpu=smallest_gpu, device=device
            )

        return Search(ask)

    def verify(self) -> Verification:
        """`oomph simulate --verify`: compares every decision of the allocator model with the recording."""
        return Verification(lambda json: self._native.simulate(json, verify=True))

    def check(
        self,
        *,
        max_peak: Size | None = None,
        max_reserved: Size | None = None,
        no_leaks: bool = False,
        max_growth: Size | None = None,
        max_fragmentation: float | None = None,
        baseline: Path | None = None,
        tolerance: str | None = None,
    ) -> Check:
        """`oomph check`: this run against limits, and against the numbers of an earlier run in `baseline`.

        `max_growth` is per step, `max_fragmentation` a share from 0 to 1, `tolerance` a share or a size (`1%`, `64MiB`).
        """

        def ask(json: bool) -> tuple[str, list[str]]:
            return self._native.check(
                json,
                max_peak=max_peak,
                max_reserved=max_reserved,
                no_leaks=no_leaks,
                max_growth=max_growth,
                max_fragmentation=max_fragmentation,
                baseline=baseline,
                tolerance=tolerance,
            )

        return Check(ask)

    def diff(self, after: "Snapshot", *, top: int | None = None) -> Difference:
        """`oomph diff`: what has changed from this run to another."""
        return Difference(lambda json: self._native.diff(after._native, json, top=top))

    def table(self, name: str) -> _native.Table:
        """`events`, `blocks`, `segments`, `frames` or `stacks`, for whatever reads Arrow (docs/reference/tables.md)."""
        return self._native.table(name)

    @property
    def tables(self) -> Mapping[str, _native.Table]:
        """All tables by name."""
        return _Tables(self._native)

    def __repr__(self) -> str:
        return f"<oomph snapshot {', '.join(self.files)}>"

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()


class _Tables(Mapping[str, _native.Table]):
    """The tables of a snapshot; made when they are asked for."""

    def __init__(self, native: _native.Snapshot) -> None:
        self._native = native

    def __getitem__(self, name: str) -> _native.Table:
        if name not in _native.TABLES:
            raise KeyError(name)
        return self._native.table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_native.TABLES)

    def __len__(self) -> int:
        return len(_native.TABLES)
