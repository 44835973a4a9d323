"""`%oomph who`: what holds memory now, by variable."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from ..sizes import format_size
from . import device_memory, html, kept_values
from .ownership import Held, Keeper, Ownership

_MAX_NAMES = 3
_MAX_TEXT = 60
UNHELD = "not held by Python"
UNHELD_WHAT = "workspaces of libraries, C++ code"
_TORCH_MISSING = "torch is not imported: nothing is held"


class Examined:
    """The process at one moment. Nothing in it refers to a tensor."""

    def __init__(self, shell: Any) -> None:
        from ..heap.walk import TooMany, walk

        outputs, error = kept_values.outputs(shell), kept_values.last_error(shell)
        slots = [*outputs, *error]
        try:
            graph = walk([source for slot in slots for source in slot.sources()])
        except TooMany as failure:
            raise ValueError(str(failure)) from None
        self.memory = device_memory.now(graph)
        self.ownership = Ownership(graph, slots, device_memory.storage_sizes(graph))
        self.shorthands: dict[str, list[str]] = {}
        for slot in outputs:
            name = str(slot.key)
            if name.startswith("_") and name != slot.keeper and name not in self.shorthands.setdefault(slot.keeper, []):
                self.shorthands[slot.keeper].append(name)

    @property
    def held(self) -> list[Held]:
        return self.ownership.held

    @property
    def unheld(self) -> int:
        """Bytes that the allocator has given to nobody that the walk knows."""
        return max(self.memory.allocated - sum(held.bytes for held in self.held), 0)

    def freeable(self) -> dict[Keeper, int]:
        """Bytes that would be free without those that can be let go of, counted with the first of them."""
        found: dict[Keeper, int] = {}
        for held in self.held:
            if all(keeper.is_freeable for keeper in held.keepers):
                for keeper in held.keepers:
                    found.setdefault(keeper, 0)
                found[held.keepers[0]] += held.bytes
        return found


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    bytes: int
    keeper: Keeper
    what: str
    cell: str
    """Where the variable got its value: `In [3]`, `In [3] or [7]`, or nothing."""
    graph: str
    """What of it only the history of tensors holds, or nothing."""
    aliases: str
    """Other names of an output, or nothing."""
    sharing: tuple[Keeper, ...]
    """Who else holds some of it."""
    shared: int

    @property
    def note(self) -> str:
        return "; ".join(filter(None, [self.graph, self.aliases, self.shared_with]))

    @property
    def shared_with(self) -> str:
        amount = "" if self.shared == self.bytes else f"{format_size(self.shared)} "
        return f"{amount}shared with {listed([keeper.name for keeper in self.sharing])}" if self.sharing else ""


def is_torch_missing() -> bool:
    return "torch" not in sys.modules


class Who:
    """What holds memory. `print()` shows it, and a notebook as HTML."""

    def __init__(self, examined: Examined, cell_of: Callable[[str], str], top: int) -> None:
        self.memory = examined.memory
        self.unheld = examined.unheld
        """Bytes of workspaces and of C++ code."""
        rows = [_row(examined, keeper, held, cell_of) for keeper, held in _by_keeper(examined.held).items()]
        self.rows = sorted(rows, key=lambda row: row.bytes, reverse=True)
        """All keepers, the largest first. With `unheld`, their bytes add up to what is allocated."""
        self._top = top
        freeable = examined.freeable()
        self.freeable = sum(freeable.values())
        """Bytes that `%oomph free` would let go of."""
        self._freeable = [keeper.name for keeper, _ in sorted(freeable.items(), key=lambda item: -item[1])]

    def __str__(self) -> str:
        if not self.rows and not self.unheld:
            return f"{self._headline()}: no tensor is held"
        lines = [self._headline(), ""]
        width = max((len(row.keeper.name) for row in self._shown), default=0)
        cells = max((len(row.cell) for row in self._shown), default=0)
        for row in self._shown:
            texts = [f"{row.keeper.name:<{width}}", *([f"{row.cell:<{cells}}"] if cells else []), row.what]
            texts += [row.note] if row.note else []
            lines.append(f"  {format_size(row.bytes):>9}  {self._share(row.bytes):>4}  " + "  ".join(texts).rstrip())
        for size, name, what in self._rest():
            lines.append(f"  {format_size(size):>9}  {self._share(size):>4}  {name}: {what}")
        return "\n".join([*lines, "", self._way_out()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [html_row(row) for row in self._shown]
        rows += [html.BarRow(size, escape(name), what=escape(what), kind="other") for size, name, what in self._rest()]
        way_out = html.paragraph(self._way_out(), "kept" if self.freeable else "")
        return html.page(html.title(self._headline()), html.bars(rows, self.memory.allocated), way_out)

    @property
    def _shown(self) -> list[Row]:
        return self.rows[: self._top]

    def _rest(self) -> list[tuple[int, str, str]]:
        others = self.rows[self._top :]
        found = (
            [(sum(row.bytes for row in others), f"{len(others)} more", f"%oomph who --top {len(self.rows)}")] if others else []
        )
        return found + ([(self.unheld, UNHELD, UNHELD_WHAT)] if self.unheld else [])

    def _share(self, size: int) -> str:
        return f"{100 * size / max(self.memory.allocated, 1):.0f}%"

    def _headline(self) -> str:
        return f"{self.memory.device} memory now: {device_memory.in_words(self.memory)}"

    def _way_out(self) -> str:
        if self.freeable:
            return f"%oomph free lets go of {format_size(self.freeable)}: {listed(self._freeable)}"
        return "%oomph free would free no tensor: variables hold them all" if self.rows else ""


def who(shell: Any, cell_of: Callable[[str], str], top: int) -> Who | str:
    return _TORCH_MISSING if is_torch_missing() else Who(Examined(shell), cell_of, top)


def listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _by_keeper(held: list[Held]) -> dict[Keeper, list[Held]]:
    found: dict[Keeper, list[Held]] = {}
    for each in held:
        if each.bytes:
            found.setdefault(each.keepers[0], []).append(each)
    return found


def _row(examined: Examined, keeper: Keeper, held: list[Held], cell_of: Callable[[str], str]) -> Row:
    total = sum(each.bytes for each in held)
    in_graph = sum(each.bytes for each in held if each.is_in_graph)
    amount = "" if format_size(in_graph) == format_size(total) else f"{format_size(in_graph)} of it "
    aliases = examined.shorthands.get(keeper.name, []) if keeper.kind == "output" else []
    return Row(
        total,
        keeper,
        _what(examined, keeper, held),
        cell_of(keeper.name) if keeper.kind == "variable" else "",
        f"{amount}held by graphs for `backward()`: keep `.item()` or `.detach()`" if 2 * in_graph > total else "",
        f"also {', '.join(aliases)}" if aliases else "",
        tuple(dict.fromkeys(other for each in held for other in each.keepers[1:])),
        sum(each.bytes for each in held if len(each.keepers) > 1),
    )


def _what(examined: Examined, keeper: Keeper, held: list[Held]) -> str:
    if keeper.kind == "error":
        return _what_of_error(examined, keeper, {each.place: each.bytes for each in held})
    if keeper.kind in ("garbage", "outside", "ipython", "function"):
        return _counted(len(held), "tensor")
    text = examined.ownership.text(keeper.seeds[0])[:_MAX_TEXT]
    return text if len(held) == 1 or examined.ownership.is_tensor(keeper.seeds[0]) else f"{text}, {_counted(len(held), 'tensor')}"


def _what_of_error(examined: Examined, keeper: Keeper, sizes: dict[int, int]) -> str:
    """`OutOfMemoryError in step(): wide 512 MiB, hidden 40.0 MiB`."""
    name = examined.ownership.exception_with(keeper, set(sizes))
    variables = examined.ownership.variables_in(keeper, set(sizes))
    amounts = [(sum(sizes[place] for place in places), *variable) for variable, places in variables.items() if variable[1]]
    if not amounts:
        return name
    amounts.sort(reverse=True)
    first = amounts[0][1]
    return f"{name} in {first}(): " + listed(
        [
            f"{variable} {format_size(size)}{'' if function == first else f' in {function}()'}"
            for size, function, variable in amounts
        ]
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def html_row(row: Row) -> html.BarRow:
    kind = "kept" if row.keeper.is_freeable else "other" if row.keeper.kind in ("ipython", "outside") else "variable"
    note = f'<div style="opacity: 0.75; font-size: 0.92em">{html.with_code(row.note)}</div>' if row.note else ""
    return html.BarRow(row.bytes, f"<code>{escape(row.keeper.name)}</code>", escape(row.cell), escape(row.what) + note, kind)
