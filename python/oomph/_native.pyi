"""The Rust half. Use `oomph.load`: functions here return the JSON or the text of a command, and its notes."""

import os
from typing import Any, Final, final

__all__ = ["TABLES", "VERSION", "Alarm", "Growth", "Snapshot", "Table", "holders", "holding", "load", "run", "size"]

TABLES: Final[list[str]]
VERSION: Final[str]

def run(arguments: list[str], python: str | os.PathLike[str] | None, libraries: str | os.PathLike[str]) -> int: ...
def size(bytes: int) -> str: ...
def holders(graph: str, tensor: tuple[str, int, int] | None, json: bool, *, top: int | None = None) -> tuple[str, list[str]]: ...
def holding(objects: list[Any], kinds: list[type], arrays: list[type], roots: set[int]) -> list[tuple[Any, int]]: ...
def load(paths: list[str | os.PathLike[str]]) -> Snapshot: ...

@final
class Alarm:
    """Whether memory grows, by the rule of the report."""

    def __new__(cls) -> Alarm: ...
    def step(self, allocated: int) -> Growth | None: ...

@final
class Growth:
    @property
    def message(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def bytes_per_step(self) -> int: ...
    @property
    def allocated(self) -> int: ...

@final
class Snapshot:
    @property
    def files(self) -> list[str]: ...
    @property
    def ranks(self) -> list[Snapshot]: ...
    def report(
        self, json: bool, *, at: int | str | None = None, by: str | None = None, top: int | None = None
    ) -> tuple[str, list[str]]: ...
    def timeline(self, columns: int) -> str: ...
    def simulate(
        self,
        json: bool,
        *,
        conf: str | None = None,
        gpu: int | str | None = None,
        non_pytorch: int | str | None = None,
        fraction: float | None = None,
        limit: int | str | None = None,
        search: bool = False,
        smallest_gpu: bool = False,
        verify: bool = False,
        torch: str | None = None,
        recorded_conf: str | None = None,
        device: int | None = None,
        output: str | os.PathLike[str] | None = None,
    ) -> tuple[str, list[str]]: ...
    def check(
        self,
        json: bool,
        *,
        max_peak: int | str | None = None,
        max_reserved: int | str | None = None,
        no_leaks: bool = False,
        max_growth: int | str | None = None,
        max_fragmentation: float | None = None,
        baseline: str | os.PathLike[str] | None = None,
        tolerance: str | None = None,
    ) -> tuple[str, list[str]]: ...
    def diff(self, after: Snapshot, json: bool, *, top: int | None = None) -> tuple[str, list[str]]: ...
    def table(self, name: str) -> Table: ...

@final
class Table:
    """A table of a snapshot, for whatever reads Arrow: `pandas.DataFrame.from_arrow`, `polars.DataFrame`,
    `pyarrow.table`, duckdb."""

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> list[str]: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
