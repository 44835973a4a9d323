"""The cuDNN that PyTorch uses, as far as it lists engines for a convolution and plans with them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

PASSES = {"forward": (10, 700), "input": (12, 706), "filter": (11, 712)}
"""Descriptor and first attribute of each pass in `cudnn_graph.h`."""

FLOAT = 0
"""`CUDNN_DATA_FLOAT`"""
INSTANT = 0
FALLBACK = 2
"""`cudnnBackendHeurMode_t`"""
HALF, BFLOAT16 = 2, 9
"""`CUDNN_DATA_HALF`, `CUDNN_DATA_BFLOAT16`"""


class Convolution(NamedTuple):
    """Sizes of the tensors, and how the filter moves in each direction."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


class Cudnn:
    """The backend interface, as far as it lists engines and plans with them."""

    def __init__(self) -> None:
        import torch

        torch.empty(1, device="cuda")
        found = glob.glob(os.path.join(os.path.dirname(torch.__path__[0]), "nvidia/cudnn/lib/libcudnn.so.9"))
        loaded = ctypes.CDLL(None)
        is_loaded = hasattr(loaded, "cudnnCreate")  # the emulator's, for example
        self.library = loaded if is_loaded else ctypes.CDLL(found[0] if found else "libcudnn.so.9")
        self.handle = ctypes.c_void_p()
        self._check(self.library.cudnnCreate(ctypes.byref(self.handle)))

    def first_engine(self, convolution: Convolution, step: str) -> int:
        """Index of the engine that the heuristics list first."""
        return self.first_choice(convolution, step, with_workspace=False)[0]

    def first_choice(
        self,
        convolution: Convolution,
        step: str,
        *,
        data_type: int = FLOAT,
        channels_last: bool = False,
        with_workspace: bool = True,
    ) -> tuple[int, int]:
        """Index of the engine that is listed first, and its workspace in bytes."""
        with contextlib.ExitStack() as stack:
            new = functools.partial(self._descriptor, stack)
            configuration = self._get(self._heuristics(stack, convolution, step, data_type, channels_last), 202, new(3))
            engine = self._number(self._get(configuration, 300, new(2)), 1301)
            if not with_workspace:
                return engine, 0
            return engine, self._workspace(stack, configuration)

    def engines(
        self, convolution: Convolution, step: str, *, data_type: int = FLOAT, channels_last: bool = False, mode: int = INSTANT
    ) -> list[int]:
        """Engines that the heuristics list, one for each of their configurations."""
        with contextlib.ExitStack() as stack:
            engine = self._descriptor(stack, 2)
            found = self._configurations(stack, convolution, step, data_type, channels_last, mode)
            return [self._number(self._get(configuration, 300, engine), 1301) for configuration in found]

    def plans(
        self, convolution: Convolution, step: str, *, data_type: int = FLOAT, channels_last: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Index and workspace of the engines that PyTorch tries, in its order."""
        for mode in (INSTANT, FALLBACK):
            with contextlib.ExitStack() as stack:
                for configuration in self._configurations(stack, convolution, step, data_type, channels_last, mode):
                    with contextlib.suppress(RuntimeError), contextlib.ExitStack() as of_plan:
                        engine = self._get(configuration, 300, self._descriptor(of_plan, 2))
                        yield self._number(engine, 1301), self._workspace(of_plan, configuration)

    def _configurations(
        self, stack: contextlib.ExitStack, convolution: Convolution, step: str, data_type: int, channels_last: bool, mode: int
    ) -> list[ctypes.c_void_p]:
        heuristics = self._heuristics(stack, convolution, step, data_type, channels_last, mode)
        room = self._count(heuristics, 202)
        array = (ctypes.c_void_p * room)(*(self._descriptor(stack, 3).value for _ in range(room)))
        count, wanted = ctypes.c_int64(), ctypes.c_int64(room)
        self._check(self.library.cudnnBackendGetAttribute(heuristics, 202, 15, wanted, ctypes.byref(count), array))
        return [ctypes.c_void_p(array[place]) for place in range(min(room, count.value))]

    def _workspace(self, stack: contextlib.ExitStack, configuration: ctypes.c_void_p) -> int:
        plan = self._descriptor(stack, 5)
        self._set(plan, 400, 0, [self.handle], ctypes.c_void_p)
        self._set(plan, 401, 15, [configuration], ctypes.c_void_p)
        return self._number(self._finalized(plan), 402)

    def _heuristics(
        self,
        stack: contextlib.ExitStack,
        convolution: Convolution,
        step: str,
        data_type: int,
        channels_last: bool,
        mode: int = INSTANT,
    ) -> ctypes.c_void_p:
        descriptor, attribute = PASSES[step]
        new = functools.partial(self._descriptor, stack)
        tensors = []
        for name, sizes in (("w", convolution.w), ("x", convolution.x), ("y", convolution.y)):
            tensor = new(17)
            self._set(tensor, 900, 3, [16], ctypes.c_int64)
            self._set(tensor, 901, 1, [data_type], ctypes.c_int)
            self._set(tensor, 902, 3, sizes, ctypes.c_int64)
            others = range(2, len(sizes))
            strides = contiguous(sizes, [0, *others, 1] if channels_last else [0, 1, *others])
            self._set(tensor, 903, 3, strides, ctypes.c_int64)
            self._set(tensor, 906, 3, [ord(name)], ctypes.c_int64)
            tensors.append(self._finalized(tensor))
        window = new(1)
        self._set(window, 100, 1, [FLOAT], ctypes.c_int)
        self._set(window, 101, 7, [1], ctypes.c_int)
        self._set(window, 106, 3, [len(convolution.padding)], ctypes.c_int64)
        of_window = (
            (102, convolution.dilation),
            (103, convolution.stride),
            (104, convolution.padding),
            (105, convolution.padding),
        )
        for name, values in of_window:
            self._set(window, name, 3, values, ctypes.c_int64)
        operation = new(descriptor)
        self._set(operation, attribute, 4, [1.0], ctypes.c_float)
        self._set(operation, attribute + 1, 4, [0.0], ctypes.c_float)
        for offset, part in enumerate([self._finalized(window), *tensors]):
            self._set(operation, attribute + 2 + offset, 15, [part], ctypes.c_void_p)
        graph = new(15)
        self._set(graph, 800, 0, [self.handle], ctypes.c_void_p)
        self._set(graph, 801, 15, [self._finalized(operation)], ctypes.c_void_p)
        heuristics = new(4)
        self._set(heuristics, 200, 8, [mode], ctypes.c_int)
        self._set(heuristics, 201, 15, [self._finalized(graph)], ctypes.c_void_p)
        return self._finalized(heuristics)

    def _descriptor(self, stack: contextlib.ExitStack, kind: int) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self._check(self.library.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
        stack.callback(self.library.cudnnBackendDestroyDescriptor, descriptor)
        return descriptor

    def _set(self, descriptor: ctypes.c_void_p, name: int, kind: int, values: Sequence[Any], of: Any) -> None:
        array = (of * len(values))(*values)
        self._check(self.library.cudnnBackendSetAttribute(descriptor, name, kind, ctypes.c_int64(len(values)), array))

    def _finalized(self, descriptor: ctypes.c_void_p) -> ctypes.c_void_p:
        self._check(self.library.cudnnBackendFinalize(descriptor))
        return descriptor

    def _get(self, descriptor: ctypes.c_void_p, name: int, to: ctypes.c_void_p) -> ctypes.c_void_p:
        array, count = (ctypes.c_void_p * 1)(to), ctypes.c_int64()
        one = ctypes.c_int64(1)
        self._check(self.library.cudnnBackendGetAttribute(descriptor, name, 15, one, ctypes.byref(count), array))
        return ctypes.c_void_p(array[0])

    def _count(self, descriptor: ctypes.c_void_p, name: int) -> int:
        """How many descriptors an attribute has."""
        count, none = ctypes.c_int64(), ctypes.c_int64(0)
        self._check(self.library.cudnnBackendGetAttribute(descriptor, name, 15, none, ctypes.byref(count), None))
        return count.value

    def _number(self, descriptor: ctypes.c_void_p, name: int) -> int:
        number, count, one = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64(1)
        answer = self.library.cudnnBackendGetAttribute(descriptor, name, 3, one, ctypes.byref(count), ctypes.byref(number))
        self._check(answer)
        return number.value

    def _check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"cuDNN returned {status}")


def contiguous(sizes: Sequence[int], order: list[int]) -> list[int]:
    """Strides of a tensor whose dimensions are in this order in memory."""
    strides, stride = [0] * len(sizes), 1
    for dimension in reversed(order):
        strides[dimension] = stride
        stride *= sizes[dimension]
    return strides
