"""Which cell gave a variable its value."""

from __future__ import annotations

import symtable
from typing import Any

_MAX_CELLS = 2


class Cells:
    """The cells that have bound each variable of the user.

    After a cell, that is every name with a new value, and what the code of a cell that came to its end assigns. Of cells that
    ran before the extension was loaded only the code is known, so there may be several.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._bound: dict[str, list[int]] = {}
        self._before: dict[str, int] | None = None
        for number, code in enumerate(shell.user_ns.get("In", [])):
            for name in assigned(code):
                self._bound.setdefault(name, []).append(number)

    def begin(self, info: Any) -> None:
        # A cell that runs within another, as `%%capture` does it, has no number.
        if info.store_history:
            self._before = self._values()

    def end(self, result: Any) -> None:
        if result is None or not result.info.store_history or self._before is None:
            return
        before, number = self._before, result.execution_count
        bound = {name for name, value in self._values().items() if before.get(name) != value}
        if result.success:
            bound |= assigned(self._shell.user_ns["In"][number])
        for name in bound:
            self._bound[name] = [number]

    def of(self, name: str) -> str:
        """`In [3]`, `In [3] or [7]`, or nothing."""
        numbers = sorted(set(self._bound.get(name, [])))
        return f"In {' or '.join(f'[{number}]' for number in numbers)}" if 0 < len(numbers) <= _MAX_CELLS else ""

    def _values(self) -> dict[str, int]:
        """Identities: a reference would keep a value alive."""
        return {name: id(value) for name, value in list(self._shell.user_ns.items()) if not name.startswith("_")}


def assigned(code: str) -> set[str]:
    """Variables that the code of a cell assigns, outside of functions."""
    try:
        table = symtable.symtable(code, "<cell>", "exec")
    except (SyntaxError, ValueError):
        return set()
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
