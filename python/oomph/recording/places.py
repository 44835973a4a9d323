"""Where the program is: in which module's forward, in whose backward, in the optimizer. Each event of the history says it.

Modules are seen through `Module._call_impl`, which every call goes through: hooks would send each of them through PyTorch's
slow path and would keep `torch.compile` from its short one. In `backward()` no Python runs; but autograd goes through the
nodes in the opposite order of the forward pass, so it is enough to know where each module's part begins: at the node of
what the module returned, and, for what its parent did between two modules, at the node of what the next one was given.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import names

_MOST_HOOKED = 4096
"""Tensors to remember as hooked; they live for one pass."""
_MOST_PLACES = 100_000
"""Modules to know; a program may make new ones all the time."""
_DEEPEST = 3
_WIDEST = 8
"""How far to look for tensors in what a module returns."""


class Place:
    """A module, with the words for it and what autograd calls when it comes to the module's part."""

    __slots__ = ("backward", "forward", "hook", "module", "path")

    def __init__(self, module: Module, path: str, places: Places) -> None:
        self.module = weakref.ref(module)
        self.path = path
        self.forward = f"forward {path}"
        self.backward = f"backward {path}"
        self.hook = places.hook(self.backward)


class _Here(threading.local):
    text = ""
    place: Place | None = None


class Places:
    """Tells `mark` where each thread is. `entered` and `left` hear of the modules that no other module has called."""

    def __init__(
        self,
        mark: Callable[[str], None],
        entered: Callable[[Module, Any, Any], None],
        left: Callable[[], None],
    ) -> None:
        self.mark = mark
        self.entered = entered
        self.left = left
        self.here = _Here()
        self.is_on = False
        self._places: dict[int, Place] = {}
        self._hooked: dict[int, weakref.ref[torch.Tensor]] = {}
        self._outside = self.hook("backward")
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        self.is_on = True
        self._follow_modules()
        self._follow_backward()
        self._follow_optimizers()

    def remove(self) -> None:
        self.is_on = False
        while self._undo:
            self._undo.pop()()

    def hook(self, text: str) -> Callable[[Any], None]:
        here, mark = self.here, self.mark

        def begins(_gradients: Any) -> None:
            here.text = text
            mark(text)

        return begins

    def _follow_modules(self) -> None:
        call: Callable[..., Any] = Module._call_impl
        here, mark, places = self.here, self.mark, self._places
        is_compiling = torch.compiler.is_compiling
        is_grad_enabled = torch.is_grad_enabled

        def _call_impl(self: Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return call(self, *args, **kwargs)
            parent, before = here.place, here.text
            place = places.get(id(self))
            if place is None or parent is None or place.module() is not self:
                place = follow(self, parent, args, kwargs)
            if args and is_grad_enabled():
                begin(args[0], outside if parent is None else parent.hook)
            here.place = place
            # Inside `backward()` a forward is a recomputation.
            here.text = text = place.backward if before.startswith("backward") else place.forward
            mark(text)
            try:
                result = call(self, *args, **kwargs)
            finally:
                here.place = parent
                here.text = before
                mark(before)
            if is_grad_enabled():
                begin(result, place.hook)
            if parent is None and text is place.forward:
                left()
            return result

        follow, begin, outside, left = self._follow, self._begin, self._outside, self.left
        Module._call_impl = _call_impl  # type: ignore[method-assign]

        def undo() -> None:
            if Module._call_impl is _call_impl:
                Module._call_impl = call  # type: ignore[method-assign]

        self._undo.append(undo)

    def _follow(self, module: Module, parent: Place | None, args: Any, kwargs: Any) -> Place:
        """The place of a module that is not known yet, or that nobody else has called."""
        try:
            if parent is None and not self.here.text.startswith("backward"):
                self.entered(module, args, kwargs)
            known = self._places.get(id(module))
            if known is not None and known.module() is module:
                return known
            if len(self._places) > _MOST_PLACES:
                self._places.clear()
            first = names.of_class(module) if parent is None else f"{parent.path}.{names.of_class(module)}"
            for name, inner in names.modules(module):
                # The names that the outermost module gives are the ones that the program knows.
                self._places[id(inner)] = Place(inner, f"{first}.{name}" if name else first, self)
            return self._places[id(module)]
        except Exception:
            return Place(module, names.of_class(module), self)

    def _begin(self, value: Any, hook: Callable[[Any], None]) -> None:
        """Has autograd call `hook` when it comes to the nodes that made `value`, unless it calls another there."""
        hooked = self._hooked
        for tensor in (value,) if type(value) is torch.Tensor else _tensors(value):
            known = hooked.get(id(tensor))
            if known is not None and known() is tensor:
                continue
            try:
                node = tensor.grad_fn
                if node is None:
                    continue
                node.register_prehook(hook)
                if len(hooked) > _MOST_HOOKED:
                    hooked.clear()
                hooked[id(tensor)] = weakref.ref(tensor)
            except Exception:
                continue  # tensors of other kinds may have no nodes, or nodes that take no hooks

    def _follow_backward(self) -> None:
        """Marks what autograd does before it comes to any module, and comes back to where the program was."""
        graph = torch.autograd.graph
        run: Callable[..., Any] | None = getattr(graph, "_engine_run_backward", None)
        if run is None or getattr(torch.autograd, "_engine_run_backward", None) is not run:
            return
        here, mark, begin, outside, places = self.here, self.mark, self._begin, self._outside, self

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if places.is_on:
                begin(tuple(t_outputs), outside)
            before = here.text
            try:
                return run(t_outputs, *args, **kwargs)
            finally:
                here.text = before
                mark(before)

        for owner in (graph, torch.autograd):
            owner._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]

        def undo() -> None:
            for owner in (graph, torch.autograd):
                if owner._engine_run_backward is _engine_run_backward:  # type: ignore[attr-defined]
                    owner._engine_run_backward = run  # type: ignore[attr-defined]

        self._undo.append(undo)

    def _follow_optimizers(self) -> None:
        here, mark = self.here, self.mark
        before: list[str] = []

        def begins(*_: Any) -> None:
            before[:] = [here.text if here.text != "optimizer" else ""]
            here.text = "optimizer"
            mark("optimizer")

        def ends(*_: Any) -> None:
            here.text = before[0] if before else ""
            mark(here.text)

        for handle in (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)):
            self._undo.append(handle.remove)


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in what a module returns; the first ones of a long list."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEEPEST:
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, (tuple, list)):
            return
        for inner, _ in zip(value, range(_WIDEST), strict=False):
            yield from _tensors(inner, depth + 1)
