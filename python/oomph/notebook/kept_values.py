"""Where IPython and Python keep what cells returned and the last error: values that no variable of the user has to hold."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

LAST_ERROR = "last error"
_SHORTHANDS = ("_", "__", "___")
_OF_INTERPRETER = ("last_exc", "last_value", "last_traceback", "last_type")
_OF_DEBUGGER = ("tb", "pdb")
NAMES_OF_IPYTHON = {"In", "Out", "_ih", "_oh", "_dh", "get_ipython", "exit", "quit", "open", "__builtins__", "__builtin__"}
"""Variables of the user's namespace that IPython makes, besides shorthands of outputs."""


@dataclass(frozen=True)
class Slot:
    """A place that holds a value: an item of a dictionary, or an attribute of an object."""

    keeper: str
    """What the value is shown as: `Out[3]`, `last error`."""
    owner: Any
    key: str | int

    def sources(self) -> list[int]:
        """Identities of the objects in which a walk finds the reference."""
        return [id(self.owner)] if isinstance(self.owner, dict) else [id(self.owner), id(vars(self.owner))]

    @property
    def names(self) -> set[str]:
        """How a walk calls the reference. Items of a namespace are attributes."""
        return {str(self.key), repr(self.key)}

    @property
    def value(self) -> Any:
        return self.owner.get(self.key) if isinstance(self.owner, dict) else getattr(self.owner, str(self.key), None)

    def clear(self, instead: Any) -> None:
        """Lets go of the value; `instead`: what the place has when there is none, or `DELETED`."""
        if isinstance(self.owner, dict):
            if instead is DELETED:
                self.owner.pop(self.key, None)
            else:
                self.owner[self.key] = instead
        elif instead is DELETED:
            with suppress(AttributeError):
                delattr(self.owner, str(self.key))
        else:
            setattr(self.owner, str(self.key), instead)


DELETED = object()


def outputs(shell: Any) -> list[Slot]:
    """What IPython keeps of the values of cells: `Out[3]` with `_3`, and `_`, `__` and `___` unless they are the user's own."""
    namespace, hidden, display = shell.user_ns, shell.user_ns_hidden, shell.displayhook
    history = namespace.get("_oh", {})
    slots: list[Slot] = []
    keepers: dict[int, str] = {}
    for number, value in list(history.items()):
        keeper = keepers.setdefault(id(value), f"Out[{number}]")
        slots += [Slot(keeper, history, number)]
        name = f"_{number}"
        slots += [Slot(keeper, space, name) for space in (namespace, hidden) if space.get(name) is value]
    for name in _SHORTHANDS:
        value = getattr(display, name, "")
        keeper = keepers.setdefault(id(value), name)
        slots.append(Slot(keeper, display, name))
        # Where the user has a variable of that name, as after `for _ in range(3)`, IPython leaves it alone, and so do we.
        slots += [Slot(keeper, namespace, name)] if namespace.get(name) is value else []
        # Since the user has one, this may be an earlier value.
        earlier = hidden.get(name)
        slots.append(Slot(keepers.setdefault(id(earlier), name), hidden, name))
    last = shell.last_execution_result
    if last is not None and id(last.result) in keepers:
        slots.append(Slot(keepers[id(last.result)], last, "result"))
    return [slot for slot in slots if _may_hold(slot.value)]


def last_error(shell: Any) -> list[Slot]:
    """Who keeps the last exception that a cell has raised, with the variables of every function that was running."""
    slots = [Slot(LAST_ERROR, vars(sys), name) for name in _OF_INTERPRETER]
    for handler in (shell.InteractiveTB, shell.SyntaxTB):
        slots += [Slot(LAST_ERROR, handler, name) for name in _OF_DEBUGGER]
    if shell.last_execution_result is not None:
        slots += [Slot(LAST_ERROR, shell.last_execution_result, name) for name in ("error_in_exec", "error_before_exec")]
    return [slot for slot in slots if _may_hold(slot.value)]


def clear_output(slots: list[Slot]) -> None:
    """As IPython does it in `%reset out`, for one value."""
    for slot in slots:
        is_attribute = not isinstance(slot.owner, dict)
        shown = None if slot.key == "result" else ""
        slot.clear(shown if is_attribute or slot.key in _SHORTHANDS else DELETED)


def clear_last_error(slots: list[Slot]) -> None:
    """As before the first error: `%tb` and `%debug` say that there is none."""
    for slot in slots:
        slot.clear(DELETED if slot.owner is vars(sys) or slot.key == "tb" else None)


def _may_hold(value: Any) -> bool:
    return value is not None and not isinstance(value, (str, int, float, bool, bytes))
