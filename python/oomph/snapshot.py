"""Snapshots, and what can be asked about them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal

from oomph import _native
from oomph.answers import Device, Difference, Finding, Peak, Report, Search, Simulation, Verification, peak

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
        return Report(self._native.report, _options(at=at, by=by, top=top))

    def simulate(
        self,
        conf: str | None = None,
        *,
        gpu: Size | None = None,
        outside: Size | None = None,
        fraction: float | None = None,
        limit: Size | None = None,
        smallest_gpu: bool = False,
        torch: str | None = None,
        recorded_conf: str | None = None,
        device: int | None = None,
        output: Path | None = None,
    ) -> Simulation:
        """`oomph simulate`: this run under other settings, on a card of another size, or with a limit.

        `output` gets the replayed run as a snapshot. For `torch` and `recorded_conf`, which change how the recording is
        understood, the file is read again.
        """
        options = _options(
            conf=conf,
            gpu=gpu,
            outside=outside,
            fraction=fraction,
            limit=limit,
            smallest_gpu=smallest_gpu,
            torch=torch,
            recorded_conf=recorded_conf,
            device=device,
        )
        once = _options(output=None if output is None else os.fspath(output))
        return Simulation(self._native.simulate, options, tuple(once))

    def search(
        self,
        *,
        gpu: Size | None = None,
        outside: Size | None = None,
        limit: Size | None = None,
        smallest_gpu: bool = False,
        device: int | None = None,
    ) -> Search:
        """`oomph simulate --search`: tries the settings that matter and ranks them."""
        options = _options(search=True, gpu=gpu, outside=outside, limit=limit, smallest_gpu=smallest_gpu, device=device)
        return Search(self._native.simulate, options)

    def verify(self) -> Verification:
        """`oomph simulate --verify`: compares every decision of the allocator model with the recording."""
        return Verification(self._native.simulate, _options(verify=True))

    def diff(self, after: "Snapshot", *, top: int | None = None) -> Difference:
        """`oomph diff`: what has changed from this run to another."""
        return Difference(lambda options: self._native.diff(after._native, options), _options(top=top))

    def table(self, name: str) -> _native.Table:
        """`events`, `blocks`, `segments`, `frames` or `stacks`, for whatever reads Arrow; docs/tables.md has the columns."""
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


def _options(**given: str | int | float | bool | None) -> list[str]:
    """`smallest_gpu=True, top=3` as `--smallest-gpu --top=3`; what is not given is left out."""
    options = []
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            options.append(option)
        elif value is not None and value is not False:
            options.append(f"{option}={value}")
    return options
