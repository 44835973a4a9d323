"""`%oomph free`: lets go of what no variable of the user holds, and measures what that frees."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

from ..sizes import format_size
from . import device_memory, html, kept_values
from .device_memory import DeviceMemory
from .ownership import MAX_KEEPERS, Keeper
from .who import UNHELD, UNHELD_WHAT, Examined, Row, Who, is_torch_missing

_MAX_KEPT = 5
_GARBAGE = ("garbage", "reference cycles that nothing uses")


@dataclass(frozen=True)
class Step:
    """One thing that was let go of, with the bytes that this freed."""

    name: str
    what: str
    allocated: int
    reserved: int
    """Given back to the GPU, for other processes."""


class Freed:
    """What was freed. The steps add up to the change of `torch.cuda.memory_allocated()` and `memory_reserved()`."""

    def __init__(self, steps: list[Step], before: DeviceMemory, after: DeviceMemory, kept: Who, is_trial: bool) -> None:
        self.steps = steps
        self.before = before
        self.after = after
        self.kept = kept
        """What holds the rest."""
        self.is_trial = is_trial
        """Whether nothing was let go of, and the steps are what is expected."""

    @property
    def allocated(self) -> int:
        """Bytes of tensors that are free now."""
        return sum(step.allocated for step in self.steps)

    @property
    def reserved(self) -> int:
        """Bytes that the allocator has given back to the GPU."""
        return sum(step.reserved for step in self.steps)

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [f"  {format_size(size):>9}  {name}{f': {what}' if what else ''}" for size, name, what in self._rows()]
        if self._kept:
            width = max(len(_named(row)) for row in self._kept)
            lines += ["", _KEPT]
            lines += [f"  {format_size(row.bytes):>9}  {_named(row):<{width}}  {_noted(row)}".rstrip() for row in self._kept]
        if self.kept.unheld:
            lines.append(f"  {format_size(self.kept.unheld):>9}  {UNHELD}: {UNHELD_WHAT}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [html.BarRow(size, escape(name), what=html.with_code(what), kind="kept") for size, name, what in self._rows()]
        kept = [
            html.BarRow(row.bytes, f"<code>{escape(_named(row))}</code>", what=html.with_code(_noted(row))) for row in self._kept
        ]
        kept += [html.BarRow(self.kept.unheld, UNHELD, what=UNHELD_WHAT, kind="other")] if self.kept.unheld else []
        whole = self.before.reserved or self.before.allocated
        below = html.paragraph(_KEPT) if self._kept else ""
        return html.page(html.title(self._headline()), html.bars(rows, whole), below, html.bars(kept, whole))

    def _headline(self) -> str:
        change = f"allocated {format_size(self.before.allocated)} → {format_size(self.after.allocated)}"
        if self.before.device == "GPU" and not self.is_trial:
            change += f", reserved {format_size(self.before.reserved)} → {format_size(self.after.reserved)}"
        verb = "would free" if self.is_trial else "freed"
        return f"{verb} {format_size(self.allocated)} of tensors: {change}"

    def _rows(self) -> list[tuple[int, str, str]]:
        rows = [(step.allocated, step.name, step.what) for step in self.steps if step.allocated]
        return rows + ([(self.reserved, "PyTorch's cache", "back to the GPU, for other processes")] if self.reserved else [])

    @property
    def _kept(self) -> list[Row]:
        return [row for row in self.kept.rows if not row.keeper.is_freeable][:_MAX_KEPT]


_KEPT = "not touched; what would free it:"


def _named(row: Row) -> str:
    """What to type, if it is variables that hold it."""
    if row.keeper.kind != "variable":
        return row.keeper.name
    others = [keeper.name for keeper in row.sharing] if _is_variables(row) else []
    return f"del {', '.join([row.keeper.name, *others])}"


def _noted(row: Row) -> str:
    return row.graph if _is_variables(row) else row.note


def _is_variables(row: Row) -> bool:
    """Whether all of it is shared, and only by variables."""
    others = [keeper.kind for keeper in row.sharing]
    return row.shared == row.bytes and set(others) == {"variable"} and len(others) < MAX_KEEPERS - 1


class _Gauge:
    """Counts what each thing that is let go of frees."""

    def __init__(self, first: DeviceMemory) -> None:
        self.last = first
        self.steps: list[Step] = []

    def step(self, name: str, what: str, expected: int, let_go: Callable[[], object]) -> None:
        """If that does not free the bytes which are `expected`, a reference cycle has them."""
        let_go()
        now = _counters()
        if self.last.allocated - now.allocated < expected:
            gc.collect()
            now = _counters()
        step = Step(name, what, self.last.allocated - now.allocated, self.last.reserved - now.reserved)
        self.steps.append(step)
        self.last = now


def _counters() -> DeviceMemory:
    from ..heap.walk import walk

    return device_memory.now({"storages": []} if device_memory.uses_gpu() else walk())


def free(shell: Any, cell_of: Callable[[str], str], is_trial: bool) -> Freed | str:
    if is_torch_missing():
        return "torch is not imported: there is nothing to free"
    examined = Examined(shell)
    before = examined.memory
    expected = examined.freeable()
    if is_trial:
        steps = [Step(*_described(keeper, examined), size, 0) for keeper, size in expected.items()]
        left = DeviceMemory(before.device, before.allocated - sum(expected.values()), before.reserved, before.non_pytorch)
        return Freed(steps, before, left, _kept(examined, cell_of), is_trial)
    gauge = _Gauge(before)
    gauge.step(*_GARBAGE, 0, gc.collect)
    for keeper, size in expected.items():
        if keeper.kind == "error":
            error = kept_values.last_error(shell)
            gauge.step(*_described(keeper, examined), size, partial(kept_values.clear_last_error, error))
    outputs = kept_values.outputs(shell)
    for keeper, size in expected.items():
        if keeper.kind == "output":
            own = [slot for slot in outputs if slot.keeper == keeper.name]
            gauge.step(*_described(keeper, examined), size, partial(kept_values.clear_output, own))
    if before.device == "GPU":
        import torch

        gauge.step("PyTorch's cache", "", 0, torch.cuda.empty_cache)
    return Freed(gauge.steps, before, gauge.last, _kept(Examined(shell), cell_of), is_trial)


def _kept(examined: Examined, cell_of: Callable[[str], str]) -> Who:
    return Who(examined, cell_of, _MAX_KEPT)


def _described(keeper: Keeper, examined: Examined) -> tuple[str, str]:
    if keeper.kind == "error":
        return keeper.name, "`%tb` and `%debug` no longer have it"
    if keeper.kind == "garbage":
        return _GARBAGE
    return keeper.name, ", ".join(examined.shorthands.get(keeper.name, []))
