"""Who holds what: the walk of a real process, with real torch on the CPU."""

import asyncio
import collections
import dataclasses
import functools
import gc
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from conftest import FORKING_PYTHON
from oomph.heap import reach, trial
from oomph.heap import walk as heap


class Graph:
    """A walk, and questions about it."""

    def __init__(self) -> None:
        graph = heap.walk()
        self.graph = graph
        self.edges: dict[int, list[tuple[str, int]]] = collections.defaultdict(list)
        for source, target, name in zip(*graph["edges"], strict=True):
            kind, text = graph["names"][name]
            self.edges[source].append((f"{kind}:{text}" if text else kind, target))
        self.storages = {row[0]: row[4] for row in graph["storages"]}

    def outside(self) -> list[str]:
        return [self.graph["types"][self.graph["nodes"][at]] for at in self.graph["outside"]]

    def from_roots(self) -> set[int]:
        return self.reached([root[0] for root in self.graph["roots"]])

    def reached(self, starts: list[int]) -> set[int]:
        found, waiting = set(starts), list(starts)
        while waiting:
            for _, target in self.edges[waiting.pop()]:
                if target not in found:
                    found.add(target)
                    waiting.append(target)
        return found

    def frame(self, function: str) -> int:
        texts = dict(self.graph["texts"])
        frames = [root[0] for root in self.graph["roots"] if root[1] == "frame"]
        return next(at for at in frames if texts[at].startswith(f"{function} ("))

    def follow(self, starts: list[int], name: str) -> list[int]:
        """Where references of this name lead; what a path leaves out is left out."""
        found = self.inside(starts)
        return [target for at in found for label, target in self.edges[at] if label == name]

    def inside(self, starts: list[int]) -> list[int]:
        found = list(starts)
        for at in found:
            found += [target for label, target in self.edges[at] if label == "inside" and target not in found]
        return found

    def bytes_at(self, function: str, *names: str) -> set[int]:
        """Sizes of the storages at the end of a path that begins in a function's frame."""
        places = [self.frame(function)]
        for name in names:
            following = self.follow(places, name)
            assert following, f"no {name} among {[label for at in self.inside(places) for label, _ in self.edges[at]]}"
            places = following
        return {self.storages[at] for at in self.inside(places) if at in self.storages}


SIZE = 4 * 1009


def tensor() -> torch.Tensor:
    return torch.ones(1009)


class Plain:
    def __init__(self) -> None:
        self.first = self.second = tensor()

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("field",)

    def __init__(self) -> None:
        self.field = tensor()


@dataclasses.dataclass
class Record:
    value: torch.Tensor = dataclasses.field(default_factory=tensor)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        ctx.note = tensor()
        return given * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def closure():
    kept = tensor()
    return lambda: kept


def generator():
    kept = tensor()
    yield
    del kept


def suspended():
    made = generator()
    next(made)
    return made


def coroutine():
    async def wait():
        kept = tensor()
        await asyncio.sleep(0)
        del kept

    made = wait()
    made.send(None)
    return made


def cached(size):
    made = functools.lru_cache(maxsize=size)(lambda key: tensor())
    made("key")
    return made


def failed():
    def fail():
        kept = tensor()
        raise KeyError(kept.shape)

    try:
        fail()
    except KeyError as error:
        return error


def with_gradient():
    made = torch.zeros(1, requires_grad=True)
    made.grad = torch.zeros(1)
    made.grad.data = tensor()
    made.grad.requires_grad_(False)
    return made


def frozen_parameter():
    made = torch.zeros(1009, requires_grad=True)
    made.sum().backward()
    return made.requires_grad_(False)


def hooked(register):
    given = torch.zeros(2, requires_grad=True)
    result, kept = given * 2, tensor()
    register(given, result, lambda *_: kept)
    return given, result


def module():
    made = torch.nn.Sequential(torch.nn.Identity())
    made[0].register_buffer("table", tensor())
    return made


def array():
    made = numpy.empty((2, 2), dtype=object)
    made[1, 0] = tensor()
    return made


HOLDERS = {
    "list": (lambda: [0, tensor()], ["item:1"]),
    "dictionary": (lambda: {"key": tensor()}, ["item:'key'"]),
    "key": (lambda: {tensor(): 1}, ["key:<torch.Tensor>"]),
    "tuple": (lambda: (tensor(), 1), ["item:0"]),
    "set": (lambda: {tensor()}, ["element"]),
    "frozenset": (lambda: frozenset([tensor()]), ["element"]),
    "deque": (lambda: collections.deque([1, tensor()]), ["item:1"]),
    "OrderedDict": (lambda: collections.OrderedDict(key=tensor()), ["item:'key'"]),
    "defaultdict": (lambda: collections.defaultdict(list, {3: [tensor()]}), ["item:3", "item:0"]),
    "namedtuple": (lambda: collections.namedtuple("Pair", "a b")(1, tensor()), ["item:1"]),
    "first name": (Plain, ["attribute:first"]),
    "second name": (Plain, ["attribute:second"]),
    "slots": (Slotted, ["attribute:field"]),
    "dataclass": (Record, ["attribute:value"]),
    "partial": (lambda: functools.partial(print, tensor()), ["attribute:args", "item:0"]),
    "bound method": (lambda: Plain().method, ["attribute:__self__", "attribute:first"]),
    "closure": (closure, ["closure:kept"]),
    "default": (lambda: lambda kept=tensor(): kept, ["attribute:__defaults__", "item:0"]),
    "generator": (suspended, ["local:kept"]),
    "coroutine": (coroutine, ["local:kept"]),
    "cache": (lambda: cached(8), ["cached"]),
    "endless cache": (lambda: cached(None), ["cached", "item:'key'"]),
    "traceback": (failed, ["attribute:__traceback__", "attribute:tb_next", "attribute:tb_frame", "local:kept"]),
    "array": (array, ["item:1, 0"]),
    "array in a dictionary": (lambda: {"key": array()}, ["item:'key'", "item:1, 0"]),
    "array of memory": (lambda: tensor().numpy(), ["attribute:base"]),
    "view": (lambda: tensor()[3:5], ["attribute:_base"]),
    "gradient": (with_gradient, ["attribute:grad"]),
    "gradient of a frozen parameter": (frozen_parameter, ["attribute:grad"]),
    "graph": (lambda: torch.zeros(1009, requires_grad=True) * tensor(), ["attribute:grad_fn", "attribute:_saved_other"]),
    "context": (lambda: Scaled.apply(torch.zeros(1, requires_grad=True)), ["attribute:grad_fn", "attribute:note"]),
    "buffer": (module, ["item:0", "attribute:table"]),
    "hook of a tensor": (
        lambda: hooked(lambda given, result, hook: given.register_hook(hook)),
        ["item:0", "attribute:_backward_hooks", "*", "closure:kept"],
    ),
    "hook of a node": (
        lambda: hooked(lambda given, result, hook: result.grad_fn.register_hook(hook)),
        ["item:1", "attribute:grad_fn", "part:hooks", "*", "closure:kept"],
    ),
    "hook before a node": (
        lambda: hooked(lambda given, result, hook: result.grad_fn.register_prehook(hook)),
        ["item:1", "attribute:grad_fn", "part:hooks", "*", "closure:kept"],
    ),
    "hook after a gradient": (
        lambda: hooked(lambda given, result, hook: given.register_post_accumulate_grad_hook(hook)),
        ["item:0", "attribute:_post_accumulate_grad_hooks", "*", "closure:kept"],
    ),
}


Unexplained = collections.Counter[str]
"""Classes of objects with references from elsewhere, which a walk has added."""


def walk_with(make: Callable[[], dict[object, object]]) -> tuple[Graph, Unexplained]:
    """A walk while a variable of this function, `held`, holds something."""
    gc.collect()
    before = collections.Counter(Graph().outside())
    held = make()
    graph = Graph()
    del held
    return graph, collections.Counter(graph.outside()) - before


@pytest.fixture(scope="module")
def walk_with_holders() -> tuple[Graph, Unexplained]:
    """One walk for all of them: each takes seconds in a process with so many modules."""
    return walk_with(lambda: {kind: make() for kind, (make, _) in HOLDERS.items()})


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_path_leads_from_a_variable_to_what_it_holds(walk_with_holders, kind):
    graph, _ = walk_with_holders
    # The number that a dictionary of hooks gives to one of them is not known here.
    places = [graph.frame("walk_with")]
    for name in ["local:held", f"item:{kind!r}", *HOLDERS[kind][1]]:
        following = graph.follow(places, name) if name != "*" else [to for at in places for _, to in graph.edges[at]]
        assert following, (name, [label for at in graph.inside(places) for label, _ in graph.edges[at]])
        places = following
    assert SIZE in {graph.storages.get(at) for at in graph.inside(places)}


def test_all_references_of_holders_are_explained(walk_with_holders):
    _, unexplained = walk_with_holders
    assert unexplained == collections.Counter(), "nothing is held from elsewhere"


def test_a_weak_reference_holds_nothing():
    def run() -> Graph:
        kept = tensor()
        weak = weakref.ref(kept)
        box = [weak]
        graph = Graph()
        assert not graph.follow(graph.follow([graph.frame("run")], "local:box"), "item:0")
        assert box and kept is weak()
        return graph

    assert run().storages


def graphs():
    given = torch.ones(257, requires_grad=True)
    yield (given * given).exp().sum()
    yield (given * 2).view(-1)[3:].relu()
    changed = given * 2
    changed[2:5].mul_(3)
    yield changed.sum()
    retained = given * 2
    retained.retain_grad()
    (retained * retained).sum().backward()
    yield retained
    yield torch.autograd.grad((given**3).sum(), given, create_graph=True)
    yield checkpoint(torch.nn.Linear(257, 3), given, use_reentrant=False).sum()
    yield Scaled.apply(given * 2).sum()
    yield torch.nn.TransformerEncoderLayer(16, 4)(torch.ones(3, 5, 16)).sum()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: [tensor.clone()], lambda packed: packed[0]):
        yield (given * given).sum()


def test_everything_that_a_graph_holds_is_explained():
    graph, unexplained = walk_with(lambda: dict(enumerate(graphs())))
    assert unexplained == collections.Counter()
    held = graph.follow([graph.frame("walk_with")], "local:held")
    for number in range(9):
        assert set(graph.storages) & graph.reached(graph.follow(held, f"item:{number}")), number


def test_what_is_saved_is_found_though_it_was_changed_since():
    given, other = torch.zeros(1009, requires_grad=True), tensor()
    kept = given * other
    other.add_(1)
    del other
    names = "local:kept", "attribute:grad_fn", "attribute:_saved_other"
    assert Graph().bytes_at("test_what_is_saved_is_found_though_it_was_changed_since", *names) == {SIZE}
    del kept


def test_the_programs_hooks_modes_and_classes_do_not_run():
    ran = []

    class Odd(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, (1, 2), dtype=inner.dtype, requires_grad=True)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            ran.append(function)

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            ran.append(function)

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            ran.append(function)
            return function(*args, **(kwargs or {}))

    given = torch.ones(5, requires_grad=True)
    odd, sparse = Odd(tensor()), torch.eye(3).to_sparse()
    with torch.autograd.graph.saved_tensors_hooks(lambda each: (ran.append("pack"), each)[1], lambda each: ran.append("unpack")):
        kept = given * given
        ran.clear()
        with Mode():
            graph = Graph()
    assert ran == []
    assert graph.bytes_at("test_the_programs_hooks_modes_and_classes_do_not_run", "local:odd", "attribute:inner") == {SIZE}
    del kept, odd, sparse


def test_odd_objects_are_survived():
    def mean(*_):
        raise RuntimeError("mine")

    everything = dict.fromkeys(("__getattr__", "__eq__", "__bool__", "__iter__", "__len__", "__repr__", "__hash__"), mean)
    odd_class = type("OddClass", (type,), {"__hash__": mean, "__eq__": mean, "__getattribute__": mean})
    odd = [
        type("Lying", (), {**everything, "__class__": property(mean)})(),
        type("OddList", (list,), everything)(),
        type("OddDict", (dict,), {**everything, "items": mean, "keys": mean})(),
        object.__new__(type.__call__(odd_class, "Odd", (), {})),
        type("LikeANode", (), {"next_functions": property(mean)})(),
    ]
    for thing in (odd[0], odd[3], odd[4]):
        object.__setattr__(thing, "kept", tensor())
    list.append(odd[1], tensor())
    dict.__setitem__(odd[2], "key", tensor())
    here, graph = "test_odd_objects_are_survived", Graph()
    for at, name in enumerate(("attribute:kept", "item:0", "item:'key'", "attribute:kept", "attribute:kept")):
        assert graph.bytes_at(here, "local:odd", f"item:{at}", name) == {SIZE}


def test_what_a_loop_and_a_handler_hold_is_theirs():
    before = collections.Counter(Graph().outside())

    def fail():
        kept = tensor()
        raise KeyError(kept.shape)

    for _ in [tensor()]:
        try:
            fail()
        except KeyError:
            graph = Graph()
    here = graph.frame("test_what_a_loop_and_a_handler_hold_is_theirs")
    assert graph.follow([here], "part:a value in use")
    raised = graph.follow([here], "part:the exception that is being handled")
    frames = graph.follow(
        graph.follow(graph.follow(raised, "attribute:__traceback__"), "attribute:tb_next"), "attribute:tb_frame"
    )
    assert graph.follow(frames, "local:kept")
    assert collections.Counter(graph.outside()) - before == collections.Counter()


def test_other_threads_have_their_names():
    ready, done = threading.Event(), threading.Event()

    def work():
        kept = tensor()
        ready.set()
        done.wait()
        del kept

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    ready.wait()
    graph = Graph()
    done.set()
    thread.join()
    assert graph.bytes_at("work", "local:kept") == {SIZE}
    assert [root[2] for root in graph.graph["roots"] if root[0] == graph.frame("work")] == ["worker"]


def test_what_was_frozen_is_found():
    kept = [tensor()]
    gc.freeze()
    try:
        assert Graph().bytes_at("test_what_was_frozen_is_found", "local:kept", "item:0") == {SIZE}
    finally:
        gc.unfreeze()
    del kept


def test_a_class_is_a_root_of_its_own():
    torch.nn.Module.table = tensor()
    try:
        graph = Graph()
    finally:
        del torch.nn.Module.table
    root = next(root[0] for root in graph.graph["roots"] if root[2] == "torch.nn.modules.module.Module")
    assert {graph.storages[at] for at in graph.inside(graph.follow([root], "attribute:table")) if at in graph.storages} == {SIZE}
    # Almost everything leads to the class, which does not count.
    assert len(graph.graph["nodes"]) < 5000


def count() -> int:
    return len(gc.get_objects())


@pytest.mark.nightly
def test_nothing_is_left_behind():
    model = torch.nn.TransformerEncoderLayer(16, 4)
    heap.walk()
    kept = [model(torch.ones(3, 5, 16)).sum(), cached(None), suspended(), failed(), Plain(), module(), array()]
    weak = weakref.ref(kept[4])
    gc.collect()
    gc.disable()
    try:
        # The nodes of a graph keep the objects that they are given since torch 2.15.
        if torch.__version__ >= "2.15":
            heap.walk()
        before = count()
        heap.walk()
        assert count() == before
        heap.walk()
        assert count() == before
        kept.clear()
        assert weak() is None
    finally:
        gc.enable()


def test_variables_are_not_kept_alive():
    kept = Plain()
    weak = weakref.ref(kept)
    heap.walk()
    del kept
    assert weak() is None


def test_both_ways_to_find_what_leads_to_tensors_agree():
    # In a process of its own: threads that other tests left behind change the counts of references in between.
    code = "import test_heap; test_heap.find_in_both_ways()"
    subprocess.run([FORKING_PYTHON.cpu, "-c", code], cwd=Path(__file__).parent, check=True, timeout=300)


def find_in_both_ways():
    kept = [array(), {"key": array()}, Plain(), closure(), suspended()]
    objects = gc.get_objects()
    kinds, arrays = [torch.Tensor, torch.nn.Parameter], [numpy.ndarray]
    roots = {id(sys.modules), id(globals())}
    native = reach.native()
    assert native is not None
    gc.disable()
    try:
        answers = []
        for find in (native.holding, reach.in_python):
            found = find(objects, kinds, arrays, roots)
            answers.append({id(thing): outside for thing, outside in found if thing is not objects and type(thing) is not dict})
            del found
    finally:
        gc.enable()
    assert len(answers[0]) > 10
    assert answers[0] == answers[1]
    del kept


def test_nothing_is_tried_while_the_programs_hooks_would_hear_of_it():
    asked = []
    tried = trial.Trial(lambda: asked.append(1) or 5)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: each):
        assert tried.result() is None
    assert (tried.result(), tried.result(), len(asked)) == (5, 5, 1)


@pytest.mark.nightly
def test_modules_are_not_asked_for_what_c_code_keeps_in_them(monkeypatch):
    """`_asyncio` of Python 3.12 shows freed objects there: to touch one keeps the interpreter from ending."""
    asked = []
    get_referents = gc.get_referents
    monkeypatch.setattr(gc, "get_referents", lambda *things: asked.extend(map(type, things)) or get_referents(*things))
    monkeypatch.setattr(reach, "native", lambda: None)
    kept = torch.ones(3)
    graph = heap.walk()
    assert len(asked) > 10_000 and not [kind for kind in set(asked) if issubclass(kind, types.ModuleType)]
    assert 12 in {row[4] for row in graph["storages"]}
    del kept
