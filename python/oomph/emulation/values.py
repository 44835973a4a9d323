"""Values for programs on an emulated GPU: small tensors are computed for real, on the CPU.

Kernels do nothing on the emulated GPU, so whatever a program reads back is zeros, `nonzero` finds nothing, and a program
whose memory depends on values takes another way than on a real one. The values that programs branch on are few and
small: lengths, masks, indices, flags, counters. So each operator whose inputs are small and hold values is run twice: on
the emulated GPU, which makes the memory requests, and on the CPU, which gives the results; those are written into the
device memory of the first (handlers.py). Where a kernel would give data that cannot be known, random numbers and
indices are made up (made_up.py), and sizes with them (counts.py). Reads of values that are not known are noted with
their place in the program (reads.py).

All this is registered for the dispatch key "Fake", which PyTorch has and does not use. It is below autograd and above the
devices: what is registered there sees every operator, also those that others call, and autograd does not see it. A
`TorchDispatchMode` would lie above, and PyTorch takes other ways when there is one.

The rule above all: memory requests stay the same. The fallback keeps no tensor alive; it is off in the backward pass,
where PyTorch asks how many references there are to a gradient and Python's would count; and whatever fails in it, an
operator runs exactly once. What is called known may then be less than what could be known, but it is not wrong.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import threading
from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint

from ..interpreter.dynamo import never_compile
from ..interpreter.importing import Report, around_import
from . import counts, operators
from .counts import Counting
from .device_memory import DeviceMemory
from .dispatch_keys import BACKWARD_BELOW, BACKWARD_KEY, BACKWARD_NAME, BELOW, KEY, include, own_keys_off, switched
from .handlers import Handler, Handlers, tensors_in
from .operators import Operator, Schema
from .reads import Read
from .wrapped_numbers import WrappedNumbers

AVAILABLE: bool = hasattr(torch.library.Library, "fallback")
"""Before PyTorch 2.5 a fallback cannot be written in Python."""

_DispatchKey = torch._C.DispatchKey

# Tensors of these kinds are not bytes behind an address.
_OTHER_KINDS = [
    getattr(_DispatchKey, name)
    for name in ("Meta", "SparseCUDA", "SparseCPU", "SparseCsrCUDA", "SparseCsrCPU", "QuantizedCUDA",
                 "QuantizedCPU", "NestedTensorCUDA", "NestedTensorCPU", "Functionalize", "ZeroTensor")
    if hasattr(_DispatchKey, name)
]  # fmt: skip

# Modes that give tensors without memory.
_TRACING = [
    getattr(torch._C._TorchDispatchModeKey, name)
    for name in ("FAKE", "FUNCTIONAL", "PROXY")
    if hasattr(torch._C._TorchDispatchModeKey, name)
]
_PLAIN = {torch.Tensor, torch.nn.Parameter}


class _Tensors(Enum):
    """What an operator's tensors are."""

    OTHERS = 0
    """Nothing for us."""
    NONE = 1
    DEVICE = 2
    """Some are on the device."""


class _Route(NamedTuple):
    """What the keys of a call say."""

    tensors: _Tensors
    in_python: bool
    """Whether it is handled in Python after us: by a mode, or a subclass of `Tensor`."""
    below: Any


_handlers: Handlers | None = None


def install(library: ctypes.CDLL, unknown: int = 0, report: Report | None = None) -> None:
    """Computes values from now on, in this thread and in those that it starts.

    `unknown` is what reads of unknown values give: whether a program makes the same requests with another number tells
    whether such values matter to it. Failures of ours go to `report`.
    """
    global _handlers
    if AVAILABLE:
        _handlers = Handlers(library, unknown)
        Fallback(_handlers).install(report)
        _leave_backward_alone(_handlers.memory)
        _leave_tracing_alone()
        _fall_through_higher_order_operators()
        _follow_threads()


def reads() -> list[Read]:
    """Where the program read unknown values."""
    return _handlers.reads.all() if _handlers is not None else []


class Fallback:
    """Stands in front of PyTorch's operators and sends each to its handler.

    It is registered for each operator by itself. As a fallback for all of them, in one place, it would fail under a
    dispatch mode: PyTorch then looks for a registration by the operator's name.
    """

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        counting = Counting(handlers)
        self.special: dict[str, Handler] = {
            "aten::copy_": handlers.copy,
            "aten::fill_": handlers.fill,
            "aten::_foreach_zero_": handlers.fill,
            "aten::resize_": handlers.resize,
            "aten::lift_fresh": handlers.lift,
            "aten::_amp_foreach_non_finite_check_and_unscale_": handlers.unscale,
            "aten::_local_scalar_dense": handlers.read,
            **dict.fromkeys(operators.MACHINERY, handlers.machinery),
            **dict.fromkeys(counts.OPERATORS, counting),
        }
        self.wrapped = WrappedNumbers()
        self.routes: dict[int, _Route] = {}
        self.libraries: dict[str, torch.library.Library] = {}
        self.registered: set[str] = set()

    def install(self, report: Report | None) -> None:
        for key in ("Fake", BACKWARD_NAME):
            self._library("_").fallback(torch.library.fallthrough_kernel, key)
        for schema in operators.of_pytorch():
            self.register(schema)
        include(KEY, True)
        # Nothing calls into Python while it ends.
        atexit.register(include, KEY, False)
        self._register_others()
        self._follow_libraries()
        around_import("torchvision.extension", after=self._register_torchvision, report=report)
        # `torch.compile` would compile us, as code that runs in between.
        never_compile(__package__, report)

    def register(self, schema: Schema) -> None:
        name = operators.full_name(schema)
        if name not in self.registered:
            self.registered.add(name)
            namespace, short = name.split("::")
            self._library(namespace).impl(short, self._entry(schema), "Fake", with_keyset=True)
            if schema.name in counts.OPERATORS:
                self._library(namespace).impl(short, self._entry(schema), BACKWARD_NAME, with_keyset=True)

    def _library(self, namespace: str) -> torch.library.Library:
        if namespace not in self.libraries:
            self.libraries[namespace] = torch.library.Library(namespace, "IMPL")
        return self.libraries[namespace]

    def _register_others(self) -> None:
        for schema in operators.of_others(torch._C._jit_get_all_schemas()):
            self.register(schema)

    def _register_torchvision(self, _module: ModuleType) -> None:
        for schema in torch._C._jit_get_schemas_for_operator("torchvision::nms"):
            self.register(schema)

    def _follow_libraries(self) -> None:
        """Operators that are defined later."""
        define, load = torch.library.Library.define, torch.ops.load_library

        @functools.wraps(define)
        def defined(library: torch.library.Library, schema: str, *args: Any, **kwargs: Any) -> Any:
            result = define(library, schema, *args, **kwargs)  # type: ignore[no-untyped-call]
            # Only this one: libraries define hundreds, and there are thousands in all.
            name = schema.partition("(")[0].partition(".")[0].strip()
            for found in operators.of_others(torch._C._jit_get_schemas_for_operator(f"{library.ns}::{name}")):
                self.register(found)
            return result

        @functools.wraps(load)
        def loaded(*args: Any, **kwargs: Any) -> Any:
            result = load(*args, **kwargs)  # type: ignore[no-untyped-call]
            self._register_others()
            return result

        torch.library.Library.define = defined  # type: ignore[method-assign, assignment]
        torch.ops.load_library = loaded  # type: ignore[method-assign]

    def _entry(self, schema: Schema) -> Callable[..., Any]:
        operator: Operator | None = None
        replace, routes = self.wrapped.replace, self.routes
        device, none = _Tensors.DEVICE, _Tensors.NONE

        def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal operator
            if operator is None:
                operator = self._learn(schema)
            args = replace(args, operator.tensors)
            tensors, in_python, below = routes.get(keyset.raw_repr()) or self._route(keyset)
            if (tensors is device or (tensors is none and operator.factory)) and not (in_python and _foreign(args)):
                return operator.handle(operator, below, args, kwargs)
            result = operator.run(below, *args, **kwargs)
            if operator.written and tensors is not none:
                self.handlers.forget(operator, args, kwargs)
            return result

        return run

    def _learn(self, schema: Schema) -> Operator:
        operator = Operator(schema)
        if operator.name in self.special:
            operator.handle = self.special[operator.name]
        elif operator.factory:
            operator.handle = self.handlers.factory
        else:
            operator.handle = self.handlers.any if operator.computable else self.handlers.opaque
        return operator

    def _route(self, keyset: Any) -> _Route:
        tensors = _Tensors.OTHERS
        if not any(keyset.has(key) for key in _OTHER_KINDS):
            if keyset.has(_DispatchKey.CUDA):
                tensors = _Tensors.DEVICE
            elif not keyset.has(_DispatchKey.CPU):
                tensors = _Tensors.NONE
        below = BACKWARD_BELOW if keyset.has(BACKWARD_KEY) else BELOW
        route = _Route(tensors, keyset.has(_DispatchKey.Python), keyset & below)
        self.routes[keyset.raw_repr()] = route
        return route


def _foreign(args: tuple[Any, ...]) -> bool:
    """Whether an operator that is handled in Python has to do with tensors without memory.

    Otherwise the program has a mode of its own, which looks on.
    """
    if any(torch._C._get_dispatch_mode(mode) is not None for mode in _TRACING):
        return True
    return any(type(tensor) not in _PLAIN for tensor in tensors_in(args))


class _Engine:
    """The autograd engine, with all but counting off while it runs: its threads take over what the caller has on."""

    def __init__(self, engine: Any, memory: DeviceMemory) -> None:
        self._engine = engine
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with switched(False):
                return self._engine.run_backward(*args, **kwargs)
        finally:
            self._memory.settle()


def _leave_backward_alone(memory: DeviceMemory) -> None:
    """Off while the autograd engine runs, on again in the Python functions that it calls."""
    variable = torch.autograd.Variable
    variable._execution_engine = _Engine(variable._execution_engine, memory)  # type: ignore[assignment]
    node = torch.autograd.function.BackwardCFunction
    node.apply = _switching_on(node.apply)  # type: ignore[method-assign]
    frame = getattr(torch.utils.checkpoint, "_CheckpointFrame", None)
    if frame is not None:
        construct = frame.__init__

        @functools.wraps(construct)
        def __init__(self: Any, recompute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            construct(self, _switching_on(recompute), *args, **kwargs)

        frame.__init__ = __init__


def _leave_tracing_alone() -> None:
    """Off while PyTorch traces with tensors that have no memory, which may have symbolic sizes."""
    mode = torch._subclasses.fake_tensor.FakeTensorMode
    enter, leave = mode.__enter__, mode.__exit__
    entered = threading.local()

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        result = enter(self)
        off = own_keys_off()
        off.__enter__()
        vars(entered).setdefault("stack", []).append(off)
        return result

    @functools.wraps(leave)
    def __exit__(self: Any, *error: Any) -> Any:
        stack = vars(entered).get("stack")
        if stack:
            stack.pop().__exit__(None, None, None)
        return leave(self, *error)

    mode.__enter__ = __enter__  # type: ignore[method-assign]
    mode.__exit__ = __exit__  # type: ignore[method-assign]


def _fall_through_higher_order_operators() -> None:
    """`torch.cond`, `flex_attention` and the like look for a kernel of our keys; the operators inside them are seen."""
    kind = torch._ops.HigherOrderOperator
    construct = kind.__init__

    def pass_by(operator: Any) -> None:
        for key in (KEY, BACKWARD_KEY):
            operator.fallthrough(key)

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        pass_by(self)

    for operator in list(torch._ops._higher_order_ops.values()):
        pass_by(operator)
    kind.__init__ = __init__  # type: ignore[method-assign]


def _switching_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def switching_on(*args: Any, **kwargs: Any) -> Any:
        with switched(True):
            return function(*args, **kwargs)

    return switching_on


def _follow_threads() -> None:
    """Dispatch keys belong to threads."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    @functools.wraps(bootstrap)
    def including(thread: threading.Thread) -> None:
        include(KEY, True)
        bootstrap(thread)

    threading.Thread._bootstrap_inner = including  # type: ignore[attr-defined]
