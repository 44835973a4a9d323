"""The graph of references that keep tensors alive, as plain data (`docs/reference/recording.md` has the format).

What the collector sees is asked of every object; what it does not see, variables of running functions and what tensors hold
in C++, is added. Objects that lead to no tensor are left out. The program stands still meanwhile: no other thread runs.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch

from ..interpreter.errors import keep
from ..interpreter.objects import complete_objects
from ..interpreter.pause import undisturbed
from ..interpreter.system import IS_LINUX
from . import arrays, attributes, autograd, frames, node_hooks, reach, saved, storages
from . import roots as roots_of
from .references import Name, References, type_name

_MAX_OBJECTS = 20_000_000
"""A walk through this many takes ten seconds."""
_MAX_NODES = 3_000_000
_MAX_PAUSE_SECONDS = 1.0
"""Not longer: a thread that is running when the walk begins makes the walk wait this long."""


class TooMany(Exception):
    """More objects than a graph may have."""


def prepare() -> None:
    """Finds out what a walk has to know: at the end of a process it is too late."""
    reach.native()
    saved.is_readable()
    storages.is_readable()
    node_hooks.offsets()


def walk(objects: Sequence[int] = ()) -> dict[str, Any]:
    """The graph of this process.

    `objects`: identities of live objects; `places` are then their places in the graph, None where one leads to no tensor.
    """
    if not IS_LINUX:
        raise OSError("what holds tensors is known on Linux only: the walk reads memory whose layout differs elsewhere")
    prepare()
    # The program's own modes and subclasses of tensors have no part in it.
    with undisturbed(_MAX_PAUSE_SECONDS), torch.no_grad():  # noqa: SIM117
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            found = _Walk()
            graph = found.graph()
            return {**graph, "places": [found.places.get(identity) for identity in objects]} if objects else graph


class _Walk:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.places: dict[int, int] = {}
        self.outside: list[int] = []
        """References to each node that are not explained yet."""
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.names: list[int] = []
        self.known_names: dict[Name, int] = {}
        self.storages: dict[int, tuple[int, storages.Storage]] = {}
        self.roots: dict[int, tuple[int, str, str, str, int]] = {}
        self.threads = {thread.ident: thread.name for thread in threading.enumerate()}
        self.caveats: dict[str, None] = {}
        self.arrays = arrays.kinds()
        self.references = References(set(map(id, self.arrays)))
        self.is_node: dict[int, bool] = {}
        self.tensors: dict[int, int] = {}
        """Places of tensors, by their addresses in C++."""
        self.owned: set[int] = set()
        """What C++ is known to hold. All owners there share one reference to an object."""
        self.saved: dict[int, tuple[int, str]] = {}
        """Which node has saved a tensor without an object, and as what; by its storage."""
        self.unpacking: dict[int, tuple[Any, list[int]]] = {}
        """Hooks that give a saved tensor back, with the nodes that have one."""

    def graph(self) -> dict[str, Any]:
        objects = complete_objects()
        if len(objects) > _MAX_OBJECTS:
            raise TooMany(f"the process has more than {_MAX_OBJECTS:,} objects")
        by_class = roots_of.Sorted(objects)
        modules, classes, ours = list(roots_of.modules()), list(by_class.classes()), by_class.ours
        roots = {id(thing) for _, thing in [*modules, *classes]} | ours
        roots |= {id(module) for module in list(sys.modules.values())} | {id(sys.modules)}
        self._add_unlisted(objects, modules)
        kinds = self._kinds(by_class.kinds.values())
        del by_class
        listed = set(map(id, kinds))
        for thing, outside in reach.holding(objects, kinds, self.arrays, roots):
            if id(thing) != id(objects):
                self._add(thing, outside - (id(thing) in listed))
        del objects
        self._add_modules(modules)
        self._add_classes(classes)
        for at in [at for at, thing in enumerate(self.nodes) if id(thing) in ours]:
            self._add_root(at, "recorder")
        self._add_frames()
        self._add_references(roots)
        self._explain_the_rest()
        return self._as_json()

    def _add_unlisted(self, objects: list[Any], modules: list[tuple[str, dict[str, Any]]]) -> None:
        """Where to begin to look for what the collector does not tell of: arrays, and what there was before `gc.freeze()`."""
        values = [value for _, frame in frames.running() for _, value in frames.variables(frame)]
        if gc.get_freeze_count():
            known = set(map(id, objects))
            candidates = [*(namespace for _, namespace in modules), *filter(gc.is_tracked, values)]
            objects += {id(thing): thing for thing in candidates if id(thing) not in known}.values()
        if self.arrays:
            kinds = {id(kind) for kind in (*self.arrays, dict, tuple)}
            untracked = [value for value in values if id(type(value)) in kinds and not gc.is_tracked(value)]
            objects += {id(thing): thing for thing in untracked}.values()

    def _kinds(self, classes: Iterable[type]) -> list[type]:
        """Those of objects that hold memory of tensors themselves."""
        tensors = attributes.with_subclasses(torch.Tensor) + attributes.with_subclasses(torch._C.StorageBase)
        return tensors + [kind for kind in classes if self._is_node(kind)]

    def _is_node(self, kind: type) -> bool:
        found = self.is_node.get(id(kind))
        if found is None:
            found = self.is_node[id(kind)] = autograd.is_node(kind)
        return found

    def _add(self, thing: Any, outside: int = 0) -> int:
        place = self.places.get(id(thing))
        if place is None:
            place = self.places[id(thing)] = len(self.nodes)
            if place == _MAX_NODES:
                raise TooMany(f"more than {_MAX_NODES:,} objects lead to tensors")
            self.nodes.append(thing)
            self.outside.append(outside)
            if issubclass(type(thing), torch.Tensor):
                self.tensors[thing._cdata] = place
        return place

    def _refer(self, source: int, name: Name, target: int) -> None:
        self.sources.append(source)
        self.targets.append(target)
        self.names.append(self.known_names.setdefault(name, len(self.known_names)))

    def _add_modules(self, modules: list[tuple[str, dict[str, Any]]]) -> None:
        for name, namespace in modules:
            place = self.places.get(id(namespace))
            if place is not None:
                self._add_root(place, "module", name, roots_of.file_of(name, namespace))
                self.references.add_namespace(namespace)

    def _add_classes(self, classes: list[tuple[str, type]]) -> None:
        for name, kind in classes:
            place = self.places.get(id(kind))
            if place is not None:
                module = attributes.namespace(kind)["__module__"]
                self._add_root(place, "class", name, roots_of.file_of(module, roots_of.namespace_of(sys.modules[module])))

    def _add_root(self, place: int, kind: str, name: str = "", file: str = "", line: int = 0) -> None:
        self.roots[place] = place, kind, name, file, line
        self.outside[place] = 0

    def _add_frames(self) -> None:
        """Functions that run now. The collector knows nothing of them since Python 3.11."""
        exceptions = {thread: frames.handled(found) for thread, found in sys._current_exceptions().items()}
        in_use: list[tuple[int, Name, Any]] = []
        for thread, frame in frames.running():
            found = [(("local", name), value) for name, value in frames.variables(frame) if id(value) in self.places]
            handled = exceptions.get(thread)
            if id(handled) in self.places and frames.catches(frame, handled):
                found.append((("part", "the exception that is being handled"), handled))
            if id(frame) in self.places:
                self._add_frame(frame, thread)
                continue
            for _, value in found:
                self.outside[self.places[id(value)]] -= 1
            if _is_ours(frame):
                # What goes through our hands is on its way to, or from, the function that has called.
                in_use += [(thread, ("part", "a value in use"), value) for _, value in found]
                continue
            found += [(name, value) for of, name, value in in_use if of == thread]
            in_use = [each for each in in_use if each[0] != thread]
            if found:
                place = self._add_frame(frame, thread)
                for name, value in found:
                    self._refer(place, name, self.places[id(value)])

    def _add_frame(self, frame: FrameType, thread: int) -> int:
        place = self._add(frame)
        # Ours hold nothing longer than it takes to write this.
        if _is_ours(frame):
            self._add_root(place, "recorder")
        else:
            name = "" if thread == threading.get_ident() else self.threads.get(thread, "")
            self._add_root(place, "frame", name, frame.f_code.co_filename, frame.f_lineno)
        return place

    def _add_references(self, roots: set[int]) -> None:
        known = len(self.nodes)
        in_order: tuple[list[int], ...] = [], [], []
        for at in range(known):
            kind = type(self.nodes[at])
            in_order[2 if kind is dict or kind is tuple else 1 if issubclass(kind, dict) else 0].append(at)
        for places in in_order:
            for at in places:
                self._add_references_of(at, roots)
        sharing = self._add_storages()
        # What the tensors hold in C++, and what that holds.
        at = 0
        while at < len(self.nodes):
            thing, kind = self.nodes[at], type(self.nodes[at])
            if at >= known and not self._is_node(kind):
                self._add_references_of(at, roots)
            if issubclass(kind, torch.Tensor):
                if at >= known:
                    self._add_storages_of(at)
                self._add_owned(at, autograd.of_tensor(thing, at in sharing))
                for hooks in autograd.hooks_of(thing):
                    if id(hooks) in self.places:
                        self._explain(self.places[id(hooks)])
            elif self._is_node(kind):
                self._add_owned(at, autograd.of_node(thing))
                self._add_saved(at, thing)
                for identity in node_hooks.of(thing):
                    if identity in self.places:
                        self._refer(at, ("part", "hooks"), self.places[identity])
                        self._explain(self.places[identity])
            at += 1

    def _add_references_of(self, at: int, roots: set[int]) -> None:
        try:
            for name, value in self.references.of(self.nodes[at]):
                target = self.places.get(id(value))
                if target is not None and id(value) not in roots:
                    self._refer(at, name, target)
        except Exception as error:
            keep(error)  # an object that is not what it says: what was found of it so far stays

    def _add_storages(self) -> set[int]:
        """Of all tensors that are known; those that share one, or have none, are the answer."""
        referred_to = set(self.targets)
        owners: dict[int, list[int]] = {}
        without: set[int] = set()
        for at in range(len(self.nodes)):
            kind = type(self.nodes[at])
            if issubclass(kind, torch.Tensor):
                places = self._add_storages_of(at)
                for place in places:
                    owners.setdefault(place, []).append(at)
                if not places:
                    without.add(at)
            elif issubclass(kind, torch._C.StorageBase):
                # PyTorch keeps one with the storage once Python has asked for it: that one holds nothing.
                self.outside[at] -= 1
                if at in referred_to or self.outside[at] > 0:
                    for storage in storages.of_storage(self.nodes[at]):
                        self._refer(at, ("inside", ""), self._add_storage(storage))
        return without.union(*(places for places in owners.values() if len(places) > 1))

    def _add_storages_of(self, at: int) -> list[int]:
        places = [self._add_storage(storage) for storage in storages.of_tensor(self.nodes[at])]
        for place in places:
            self._refer(at, ("inside", ""), place)
        return places

    def _add_owned(self, at: int, references: Iterator[autograd.Reference]) -> None:
        """Tensors and nodes that C++ holds."""
        for name, value in references:
            target = self._add(value)
            self._refer(at, ("attribute", name), target)
            self._explain(target)

    def _explain(self, target: int) -> None:
        if target not in self.owned:
            self.owned.add(target)
            self.outside[target] -= 1

    def _add_saved(self, at: int, node: Any) -> None:
        if not saved.is_readable() or not storages.is_readable():
            self.caveats["what graphs of `backward()` have saved is not followed in this version of PyTorch"] = None
            return
        for name, raw in autograd.saved_by(node):
            found = saved.read(raw)
            if found.tensor:
                self._add_saved_tensor(at, name, found.tensor)
            elif found.has_hooks and hasattr(raw, "unpack_hook"):
                self._add_packed(at, name, raw.data)
                self._add_packed(at, name, raw.unpack_hook)
                self.unpacking.setdefault(id(raw.unpack_hook), (raw.unpack_hook, []))[1].append(at)
            elif found.has_hooks:
                self.caveats["what hooks for saved tensors have packed is not followed before torch 2.11"] = None

    def _add_saved_tensor(self, at: int, name: str, address: int) -> None:
        target = self.tensors.get(address)
        if target is not None:
            self._refer(at, ("attribute", name), target)
            self._explain(target)
            return
        # Only its memory is kept, in a tensor that Python has never seen.
        identity = saved.storage_of(address)
        storage = storages.at(identity) if identity else None
        if storage is not None:
            self._refer(at, ("attribute", name), self._add_storage(storage))
            self.saved[identity] = at, name

    def _add_packed(self, at: int, name: str, value: Any) -> None:
        target = self.places.get(id(value))
        if target is not None:
            self._refer(at, ("attribute", name), target)
            self.outside[target] -= 1

    def _explain_the_rest(self) -> None:
        """What C++ alone holds, where nothing there can be asked for it, but something fits."""
        for at in [at for at, count in enumerate(self.outside) if count > 0]:
            thing, kind = self.nodes[at], type(self.nodes[at])
            if issubclass(kind, torch.Tensor) and at not in self.owned:
                # A tensor that is saved may be a view of it.
                identities = [storage.identity for storage in storages.of_tensor(thing)]
                for node, name in [self.saved[identity] for identity in identities if identity in self.saved]:
                    self._refer(node, ("attribute", f"{name}._base"), at)
                    self._explain(at)
            elif kind is FunctionType and roots_of.is_of_ours(thing.__globals__):
                self.outside[at] = 0
            elif kind is FunctionType or kind is MethodType:
                # The hook that packs is kept with the one that unpacks.
                for hook, nodes in self.unpacking.values():
                    if len(nodes) == self.outside[at] and autograd.is_kept_with(thing, hook):
                        for node in dict.fromkeys(nodes):
                            self._refer(node, ("part", "a hook that packs"), at)
                        self.outside[at] = 0
        for thread, frame in frames.running():
            for identity in frames.on_stack(frame):
                target = self.places.get(identity)
                if target is not None and self.outside[target] > 0:
                    self.outside[target] -= 1
                    if not _is_ours(frame):
                        self._refer(self._add_frame(frame, thread), ("part", "a value in use"), target)

    def _add_storage(self, storage: storages.Storage) -> int:
        known = self.storages.get(storage.identity)
        if known is None:
            known = self.storages[storage.identity] = (len(self.nodes), storage)
            self.nodes.append(storage)
            self.outside.append(0)
        return known[0]

    def _as_json(self) -> dict[str, Any]:
        kinds = {id(kind): kind for kind in map(type, self.nodes)}
        numbers_of_kinds = {identity: number for number, identity in enumerate(kinds)}
        numbers = [numbers_of_kinds[id(type(thing))] for thing in self.nodes]
        return {
            "version": 1,
            "types": ["storage" if kind is storages.Storage else type_name(kind) for kind in kinds.values()],
            "files": roots_of.files(kinds.values()),
            "nodes": numbers,
            "texts": [[at, text] for at, thing in enumerate(self.nodes) if (text := _text(thing))],
            "names": list(self.known_names),
            "edges": [self.sources, self.targets, self.names],
            "storages": [[place, *storage[1:]] for place, storage in self.storages.values()],
            "roots": list(self.roots.values()),
            "outside": [at for at, count in enumerate(self.outside) if count > 0],
            "caveats": list(self.caveats),
        }


_RECORD_API = f"{__name__.partition('.')[0]}.recording.api"
"""Functions that it decorates are called from there."""


def _is_ours(frame: FrameType) -> bool:
    return roots_of.is_of_ours(frame.f_globals) and dict.get(frame.f_globals, "__name__") != _RECORD_API


def _text(thing: Any) -> str:
    """What to show of an object in addition to its class."""
    kind = type(thing)
    if issubclass(kind, torch.Tensor):
        try:
            dtype = str(thing.dtype).removeprefix("torch.")
            return dtype if storages.has_own_dispatch(kind) else f"{dtype} {tuple(thing.shape)}"
        except Exception as error:
            keep(error)
            return ""
    if kind is deque and thing.maxlen is not None:
        return f"maxlen={thing.maxlen}"
    if kind is FrameType:
        return f"{thing.f_code.co_name} ({thing.f_code.co_filename}:{thing.f_lineno})"
    if kind is FunctionType:
        return f"{thing.__qualname__} ({thing.__code__.co_filename}:{thing.__code__.co_firstlineno})"
    return ""
