"""Which variables of a notebook hold the memory of tensors: each storage with everyone who keeps it, from a walk of the heap."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from .kept_values import LAST_ERROR, NAMES_OF_IPYTHON, Slot

MAX_KEEPERS = 4
"""Of one storage. Those that nothing can be freed from come first, so that they are never left out."""
_HISTORY = ("attribute", "grad_fn")
_CALLER = ("attribute", "f_back")
"""From a function in a traceback to those that had called it, which lead to almost everything."""


@dataclass(eq=False)
class Keeper:
    """A variable, or something else that keeps tensors alive."""

    kind: str
    """`variable`, `module`, `function`, `ipython`, `outside`, `output`, `error` or `garbage`."""
    name: str
    seeds: list[int] = field(default_factory=list)
    """Places of the objects that it refers to."""

    @property
    def is_freeable(self) -> bool:
        return self.kind in ("output", "error", "garbage")


@dataclass
class Held:
    """The memory of one tensor, and who keeps it: the first of them is who it is counted with."""

    place: int
    bytes: int
    keepers: list[Keeper]
    is_in_graph: bool
    """Whether the first keeper has it only through the history of a tensor, as what `backward()` needs."""


class Ownership:
    """The keepers of a heap."""

    def __init__(self, graph: dict[str, Any], slots: list[Slot], bytes_of: dict[int, int]) -> None:
        """`graph`: a walk that has looked for the sources of `slots`, from which memory can be let go. `bytes_of`: the bytes of
        each storage that counts, by its place."""
        self._graph = graph
        self._names: list[tuple[str, str]] = graph["names"]
        sources: dict[int, list[tuple[str, set[str]]]] = {}
        at = 0
        for slot in slots:
            for _ in slot.sources():
                place = graph["places"][at]
                at += 1
                if place is not None:
                    sources.setdefault(place, []).append((slot.keeper, slot.names))
        self._texts: dict[int, str] = dict(graph["texts"])
        self._storages = {place for place, *_ in graph["storages"]}
        self._edges: list[list[tuple[int, int]]] = [[] for _ in graph["nodes"]]
        self._kept: dict[str, list[int]] = {}
        roots = {root for root, *_ in graph["roots"]}
        for source, target, name in zip(*graph["edges"], strict=True):
            if target in roots:
                continue  # who refers to a module or a running function does not keep its variables
            keeper = next((keeper for keeper, names in sources.get(source, ()) if self._names[name][1] in names), None)
            if keeper is None:
                self._edges[source].append((target, name))
            else:
                self._kept.setdefault(keeper, []).append(target)
        self.keepers = self._all_keepers()
        self.held = self._held(bytes_of)

    def _all_keepers(self) -> list[Keeper]:
        """Variables of the user first. Each kind that can be freed comes after all that cannot."""
        variables: list[Keeper] = []
        modules: list[Keeper] = []
        others: list[Keeper] = []
        for root, kind, name, file, line in self._graph["roots"]:
            if kind == "module" and name == "__main__":
                for target, number in self._edges[root]:
                    variable = self._names[number][1]
                    is_own = variable not in NAMES_OF_IPYTHON
                    found = variables if is_own else others
                    found.append(Keeper("variable" if is_own else "ipython", variable, [target]))
            elif kind in ("module", "class"):
                path = name.removeprefix("__main__.")
                modules += [
                    Keeper("module", f"{path}.{self._names[number][1]}", [target]) for target, number in self._edges[root]
                ]
            elif kind == "frame":
                code = self._function(root) or f"{file}:{line}"
                modules.append(Keeper("function", f"{code}() in {name}" if name else f"{code}()", [root]))
            else:
                others.append(Keeper("ipython", "oomph", [root]))
        outside = [Keeper("outside", "C++ code", list(self._graph["outside"]))]
        kept = [Keeper("error" if name == LAST_ERROR else "output", name, seeds) for name, seeds in self._kept.items()]
        kept.sort(key=lambda keeper: keeper.kind)
        # Parameters count with their model, not with an optimizer that was defined before.
        variables.sort(key=lambda keeper: not self._is_module(keeper.seeds[0]))
        return [*variables, *modules, *others, *outside, *kept]

    def _is_module(self, place: int) -> bool:
        """Whether an object is a `torch.nn.Module`: a path leaves out the dictionaries of its parts."""
        return any(self._inside(dictionary) for dictionary in self._inside(place))

    def _inside(self, place: int) -> list[int]:
        return [target for target, name in self._edges[place] if self._names[name][0] == "inside"]

    def _held(self, bytes_of: dict[int, int]) -> list[Held]:
        first, in_graph = self._first_keepers()
        keepers = self._sharing_keepers()
        garbage = Keeper("garbage", "garbage")
        held = []
        for place, size in bytes_of.items():
            owner = first.get(place, garbage)
            others = [keeper for keeper in keepers.get(place, ()) if keeper is not owner]
            held.append(Held(place, size, [owner, *others], place in in_graph))
        return held

    def _first_keepers(self) -> tuple[dict[int, Keeper], set[int]]:
        """Who each object counts with: the first that leads to it, if possible not through the history of a tensor, nor through
        the callers of a function; and what has been found only through histories."""
        first: dict[int, Keeper] = {}
        waiting = [(keeper, seed) for keeper in self.keepers for seed in keeper.seeds]
        callers: list[tuple[Keeper, int]] = []
        in_graphs: set[int] = set()
        is_history = False
        while waiting:
            histories: list[tuple[Keeper, int]] = []
            for keeper, seed in waiting:
                found = self._reach(keeper, seed, first, histories, callers)
                in_graphs.update(found if is_history else ())
            is_history = bool(histories)
            if histories:
                waiting = histories
            else:
                waiting, callers = callers, []
        return first, in_graphs

    def _reach(
        self,
        keeper: Keeper,
        seed: int,
        first: dict[int, Keeper],
        histories: list[tuple[Keeper, int]],
        callers: list[tuple[Keeper, int]],
    ) -> list[int]:
        """What nobody has reached before; `histories` and `callers` get what comes later."""
        found = []
        waiting = [seed]
        while waiting:
            place = waiting.pop()
            if place in first:
                continue
            first[place] = keeper
            found.append(place)
            for target, name in self._edges[place]:
                if self._names[name] == _HISTORY:
                    histories.append((keeper, target))
                elif self._names[name] == _CALLER:
                    callers.append((keeper, target))
                else:
                    waiting.append(target)
        return found

    def _sharing_keepers(self) -> dict[int, list[Keeper]]:
        """Everyone who leads to each object, up to a few."""
        found: dict[int, list[Keeper]] = {}
        for keeper in self.keepers:
            waiting = list(keeper.seeds)
            while waiting:
                place = waiting.pop()
                known = found.setdefault(place, [])
                # Whoever leads to an object with that many keepers leads to what it refers to as well, which has as many.
                if len(known) < MAX_KEEPERS and keeper not in known[-1:]:
                    known.append(keeper)
                    waiting += [target for target, _ in self._edges[place]]
        return found

    def text(self, place: int) -> str:
        """What an object is: its class, and the shape of a tensor."""
        name = self._graph["types"][self._graph["nodes"][place]].rpartition(".")[2]
        return f"{name} {self._texts.get(place, '')}".strip()

    def is_tensor(self, place: int) -> bool:
        return any(target in self._storages for target in self._inside(place))

    def exception_with(self, keeper: Keeper, places: set[int]) -> str:
        """The class of the exception that leads to one of these places; an earlier one has left only its traceback."""
        for seed in keeper.seeds:
            name = self.text(seed)
            if name not in ("traceback", "type") and self.variables_in(Keeper(keeper.kind, keeper.name, [seed]), places):
                return name
        return "an earlier exception"

    def variables_in(self, keeper: Keeper, places: set[int]) -> dict[tuple[str, str], set[int]]:
        """Which of these places are held by which function's variable, along the traceback of an error."""
        found: dict[tuple[str, str], set[int]] = {}
        seen: set[int] = set()
        waiting = deque((seed, ("", "")) for seed in keeper.seeds)
        while waiting:
            place, variable = waiting.popleft()
            if place in seen:
                continue
            seen.add(place)
            if place in places:
                found.setdefault(variable, set()).add(place)
            for target, number in self._edges[place]:
                kind, name = self._names[number]
                is_first = kind == "local" and variable == ("", "")
                waiting.append((target, (self._function(place), name) if is_first else variable))
        return found

    def _function(self, frame: int) -> str:
        return self._texts.get(frame, "").partition(" (")[0]
