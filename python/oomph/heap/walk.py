"""The graph of references that keep tensors alive, as plain data (`docs/recording.md` has the format).

What the collector sees is asked of every object; what it does not see, variables of running functions and what tensors hold
in C++, is added. Objects that lead to no tensor are left out. The program stands still meanwhile: no other thread runs.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from . import attributes, autograd, storages
from .frames import stack, variables
from .reach import holding
from .references import Name, References, type_name

_MOST_NODES = 3_000_000
_SECONDS_WITHOUT_OTHER_THREADS = 60.0


class TooMany(Exception):
    """More objects than a graph may have."""


def walk() -> dict[str, Any]:
    """The graph of this process."""
    with _undisturbed(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return _Walk().graph()


@contextmanager
def _undisturbed() -> Iterator[None]:
    collects, interval = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(_SECONDS_WITHOUT_OTHER_THREADS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if collects:
            gc.enable()


class _Walk:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.places: dict[int, int] = {}
        self.outside: list[int] = []
        """References to each node that are not explained yet."""
        self.texts: dict[int, str] = {}
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.names: list[int] = []
        self.known_names: dict[Name, int] = {}
        self.storages: dict[int, tuple[int, storages.Storage]] = {}
        self.roots: list[tuple[int, str, str, str, int]] = []
        self.references = References()

    def graph(self) -> dict[str, Any]:
        modules = list(_modules())
        roots = {id(namespace) for _, namespace in modules}
        roots |= {id(module) for module in list(sys.modules.values())} | {id(sys.modules)}
        objects = gc.get_objects()
        for thing, outside in holding(objects, _kinds(objects), roots):
            if id(thing) != id(objects):
                self._add(thing, outside)
        del objects
        self._add_modules(modules)
        self._add_frames()
        self._add_references(roots)
        return self._as_json()

    def _add(self, thing: Any, outside: int = 0) -> int:
        place = self.places.get(id(thing))
        if place is None:
            place = self.places[id(thing)] = len(self.nodes)
            if place == _MOST_NODES:
                raise TooMany(f"more than {_MOST_NODES:,} objects lead to tensors")
            self.nodes.append(thing)
            self.outside.append(outside)
        return place

    def _refer(self, source: int, name: Name, target: int) -> None:
        self.sources.append(source)
        self.targets.append(target)
        self.names.append(self.known_names.setdefault(name, len(self.known_names)))

    def _add_modules(self, modules: list[tuple[str, dict[str, Any]]]) -> None:
        for name, namespace in modules:
            place = self.places.get(id(namespace))
            if place is not None:
                file = namespace.get("__file__")
                self.roots.append((place, "module", name, file if type(file) is str else "", 0))
                self.references.add_namespace(namespace)
                self.outside[place] = 0

    def _add_frames(self) -> None:
        """Functions that run now. The collector knows nothing of them since Python 3.11."""
        threads = {thread.ident: thread.name for thread in threading.enumerate()}
        here = threading.get_ident()
        for thread, innermost in sys._current_frames().items():
            for frame in stack(innermost):
                # Not those of this walk: a frame that refers to itself would stay.
                if frame.f_globals.get("__package__") != __package__:
                    self._add_frame(frame, "" if thread == here else threads.get(thread, ""))
        innermost = frame = None  # type: ignore[assignment]

    def _add_frame(self, frame: FrameType, thread: str) -> None:
        found = [(name, self.places[id(value)]) for name, value in variables(frame) if id(value) in self.places]
        is_known = id(frame) in self.places
        if not found and not is_known:
            return
        place = self._add(frame)
        if not is_known:
            for name, target in found:
                self._refer(place, ("local", name), target)
                self.outside[target] -= 1
        self.outside[place] = 0
        # The recorder holds nothing longer than it takes to write this.
        if frame.f_globals.get("__package__") != _RECORDER:
            self.roots.append((place, "frame", thread, frame.f_code.co_filename, frame.f_lineno))

    def _add_references(self, roots: set[int]) -> None:
        late = (dict, tuple)
        known = len(self.nodes)
        for at in range(known):
            if type(self.nodes[at]) not in late:
                self._add_references_of(at, roots)
        for at in range(known):
            if type(self.nodes[at]) in late:
                self._add_references_of(at, roots)
        # What the tensors hold in C++, and what that holds.
        held: set[int] = set()
        at = 0
        while at < len(self.nodes):
            thing, kind = self.nodes[at], type(self.nodes[at])
            if at >= known and not _is_node(kind):
                self._add_references_of(at, roots)
            if issubclass(kind, torch.Tensor):
                self._add_storages(at, storages.of_tensor(thing))
                self._add_hidden(at, autograd.of_tensor(thing), held)
            elif _is_node(kind):
                self._add_hidden(at, autograd.of_node(thing), held)
            at += 1
        for at in range(known):
            if issubclass(type(self.nodes[at]), torch._C.StorageBase):
                self._add_storages(at, storages.of_storage(self.nodes[at]))
                # It belongs to the storage, not the other way round, as long as a tensor has the storage.
                self.outside[at] -= 1

    def _add_references_of(self, at: int, roots: set[int]) -> None:
        try:
            for name, value in self.references.of(self.nodes[at]):
                target = self.places.get(id(value))
                if target is not None and id(value) not in roots:
                    self._refer(at, name, target)
        except Exception:
            return  # an object that is not what it says: what was found of it so far stays

    def _add_hidden(self, at: int, references: Iterator[autograd.Reference], held: set[int]) -> None:
        for kind, name, value in references:
            is_saved = issubclass(type(value), torch.Tensor) and _is_node(type(self.nodes[at]))
            if is_saved and id(value) not in self.places:
                # Only its memory is kept, in a tensor that Python has never seen.
                for storage in storages.of_tensor(value):
                    self._refer(at, (kind, name), self._add_storage(storage))
                continue
            if not (issubclass(type(value), torch.Tensor) or _is_node(type(value)) or id(value) in self.places):
                continue
            target = self._add(value)
            self._refer(at, (kind, name), target)
            # All owners in C++ share one reference to a tensor's object.
            if target not in held or not (issubclass(type(value), torch.Tensor) or _is_node(type(value))):
                self.outside[target] -= 1
            held.add(target)

    def _add_storages(self, at: int, found: Iterator[storages.Storage]) -> None:
        for storage in found:
            self._refer(at, ("inside", ""), self._add_storage(storage))

    def _add_storage(self, storage: storages.Storage) -> int:
        known = self.storages.get(storage.identity)
        if known is None:
            known = self.storages[storage.identity] = (len(self.nodes), storage)
            self.nodes.append(storage)
            self.outside.append(0)
        return known[0]

    def _as_json(self) -> dict[str, Any]:
        types: dict[type, int] = {}
        numbers = [types.setdefault(type(thing), len(types)) for thing in self.nodes]
        files = {}
        for kind in types:
            module = attributes.namespace(kind).get("__module__")
            if type(module) is str and type(getattr(sys.modules.get(module), "__file__", None)) is str:
                files[module] = sys.modules[module].__file__
        return {
            "version": 1,
            "types": ["storage" if kind is storages.Storage else type_name(kind) for kind in types],
            "files": files,
            "nodes": numbers,
            "texts": [[at, text] for at, thing in enumerate(self.nodes) if (text := _text(thing))],
            "names": list(self.known_names),
            "edges": [self.sources, self.targets, self.names],
            "storages": [[place, *storage[1:]] for place, storage in self.storages.values()],
            "roots": self.roots,
            "outside": [at for at, count in enumerate(self.outside) if count > 0],
        }


_RECORDER = f"{__package__.rpartition('.')[0]}.recording"


def _modules() -> Iterator[tuple[str, dict[str, Any]]]:
    seen: set[int] = set()
    for name, module in [("__main__", sys.modules.get("__main__")), *list(sys.modules.items())]:
        if isinstance(module, ModuleType):
            namespace = ModuleType.__dict__["__dict__"].__get__(module)
            if id(namespace) not in seen:
                seen.add(id(namespace))
                yield name, namespace


def _kinds(objects: list[Any]) -> set[type]:
    """Classes of objects that hold memory of tensors themselves."""
    return {
        kind for kind in set(map(type, objects))
        if issubclass(kind, (torch.Tensor, torch._C.StorageBase)) or _is_node(kind)
    }  # fmt: skip


_node_kinds: dict[type, bool] = {}


def _is_node(kind: type) -> bool:
    """Whether it is a class of nodes of the graph that `backward()` runs through."""
    found = _node_kinds.get(kind)
    if found is None:
        found = _node_kinds[kind] = any("next_functions" in attributes.namespace(base) for base in attributes.mro(kind))
    return found


def _text(thing: Any) -> str:
    """What to say of an object beside its class."""
    kind = type(thing)
    if issubclass(kind, torch.Tensor):
        try:
            return f"{str(thing.dtype).removeprefix('torch.')} {tuple(thing.shape)}"
        except Exception:
            return ""
    if kind is FrameType:
        return f"{thing.f_code.co_name} ({thing.f_code.co_filename}:{thing.f_lineno})"
    if kind is FunctionType:
        return f"{thing.__qualname__} ({thing.__code__.co_filename}:{thing.__code__.co_firstlineno})"
    return ""
