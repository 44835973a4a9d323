"""Where the program is: in which module's forward, in whose backward, in the optimizer. Each event of the history says it.

Modules are seen through `Module._call_impl`, which every call goes through: hooks would send each of them through PyTorch's
slow path. In `backward()` no Python runs; but autograd goes through the
nodes in the opposite order of the forward pass, so it is enough to know where each module's part begins: at the node of
what the module returned, and, for what its parent did between two modules, at the node of what the next one was given.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules import module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .names import Names

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

    def __init__(self, module: Module, path: str, number: int, places: Places) -> None:
        self.module = weakref.ref(module)
        self.path = path
        # A number: every event has a copy of these words, and C++ takes memory for those of more than 15 letters.
        self.forward = f"forward {number}"
        self.backward = f"backward {number}"
        self.hook = places.hook(self.backward)


class _Here(threading.local):
    """Where a thread is: in the forward of this module, with this said about it."""

    place: Place | None = None
    text = ""


class Places:
    """Tells `mark` where each thread is, and `marked` says what it was told last. `entered` and `left` hear of the modules
    that no other module has called."""

    def __init__(
        self,
        names: Names,
        mark: Callable[[str], None],
        marked: Callable[[], str],
        entered: Callable[[Module, Any, Any], None],
        left: Callable[[], None],
    ) -> None:
        self.names = names
        self.mark = mark
        self.marked = marked
        self.entered = entered
        self.left = left
        self.here = _Here()
        self.paths: dict[str, int] = {}
        """The modules by their paths, and the numbers that stand for them."""
        self.follows_backward = True
        """Whether to mark what each module's part in `backward()` allocates."""
        self._places: dict[int, Place] = {}
        self._hooked: dict[int, weakref.ref[torch.Tensor]] = {}
        self._outside = self.hook("backward")
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        self._follow_modules()
        self._follow_backward()
        self._follow_optimizers()

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def hook(self, text: str) -> torch.Tensor:
        """What autograd calls when it comes to a part of the program: the hook of an empty tensor of our own.

        PyTorch lets a node have the hooks of a tensor. That takes a third of the time of a hook that is registered with
        the node, and leaves the program's own tensors alone.
        """
        mark = self.mark

        def begins(_gradient: Any) -> None:
            mark(text)

        # Not for the program's own modes to see.
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            bearer = torch.empty(0, device="cpu")
        bearer._backward_hooks = OrderedDict(((0, begins),))
        return bearer

    def _follow_modules(self) -> None:
        call: Callable[..., Any] = Module._call_impl
        here, mark, places = self.here, self.mark, self._places
        is_compiling, is_grad_enabled, is_tracing = torch.compiler.is_compiling, torch.is_grad_enabled, torch._C._get_tracing_state
        before_all, after_all = module._global_forward_pre_hooks, module._global_forward_hooks
        backward_of_all, before_backward_of_all = module._global_backward_hooks, module._global_backward_pre_hooks

        # Every call of a module goes through here, and is part of every recorded stack: each line counts.
        def _call_impl(self: Module, *args: Any, **kwargs: Any) -> Any:
            # `torch.compile` and `torch.export` trace this function, and take what PyTorch's own does.
            if is_compiling():
                return call(self, *args, **kwargs)
            is_plain = not (
                self._forward_pre_hooks
                or self._forward_hooks
                or self._backward_hooks
                or self._backward_pre_hooks
                or before_all
                or after_all
                or backward_of_all
                or before_backward_of_all
            )
            parent, before = here.place, here.text
            place = places.get(id(self))
            if parent is None:
                before = marked()
            if place is None or parent is None or place.module() is not self:
                place = follow(self, parent, before, args, kwargs)
            has_gradients = of.follows_backward and is_grad_enabled()
            if has_gradients:
                begin((args, kwargs) if kwargs else args, parent)
            # Inside `backward()` a forward is a recomputation.
            text = place.backward if before.startswith("backward") else place.forward
            here.place, here.text = place, text
            mark(text)
            try:
                # As PyTorch does it without hooks: one frame less on every stack.
                result = self.forward(*args, **kwargs) if is_plain and not is_tracing() else call(self, *args, **kwargs)
            finally:
                here.place, here.text = parent, before
                mark(before)
            if has_gradients:
                begin(result, place)
            if parent is None and text is place.forward:
                left()
            return result

        of, follow, begin, left, marked = self, self._follow, self._begin, self.left, self.marked
        Module._call_impl = _call_impl  # type: ignore[method-assign]

        def undo() -> None:
            if Module._call_impl is _call_impl:
                Module._call_impl = call  # type: ignore[method-assign]

        self._undo.append(undo)

    def _follow(self, module: Module, parent: Place | None, text: str, args: Any, kwargs: Any) -> Place:
        """The place of a module that is not known yet, or that nobody else has called."""
        try:
            if parent is None and not text.startswith("backward"):
                self.entered(module, args, kwargs)
            if len(self._hooked) > _MOST_HOOKED:
                self._hooked.clear()
            known = self._places.get(id(module))
            if known is not None and known.module() is module:
                return known
            # With a new outermost module, names that were given without it may have changed.
            if len(self._places) > _MOST_PLACES or (parent is None and not self.names.knows(module)):
                self._places.clear()
            path = self.names.of_module(module, None if parent is None else parent.module())
        except Exception:
            path = type(module).__name__
        place = self._places[id(module)] = Place(module, path, self.paths.setdefault(path, len(self.paths)), self)
        return place

    def _begin(self, value: Any, place: Place | None) -> None:
        """Has autograd say that it is at `place` when it comes to the nodes that made `value`, if they do not have one."""
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if compiled is not None and getattr(compiled, "compiled_autograd_enabled", False):
            return  # it would have to compile the hook
        hooked = self._hooked
        hook = self._outside if place is None else place.hook
        try:
            for tensor in (value,) if type(value) is torch.Tensor else _tensors(value):
                known = hooked.get(id(tensor))
                if known is not None and known() is tensor:
                    continue
                with torch._C.DisableTorchFunction():
                    node = tensor.grad_fn
                if node is not None:
                    node._register_hook_dict(hook)
                    hooked[id(tensor)] = weakref.ref(tensor)
        except Exception:
            return  # containers may not let us look; tensors of other kinds may have no nodes, or nodes that take no hooks

    def _follow_backward(self) -> None:
        """Marks what autograd does before it comes to any module, and comes back to where the program was."""
        owners: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)
        if not all(hasattr(owner, "_engine_run_backward") for owner in owners):
            return
        run: Callable[..., Any] = owners[0]._engine_run_backward
        mark, marked, begin = self.mark, self.marked, self._begin

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            begin(tuple(t_outputs), None)
            before = marked()
            try:
                return run(t_outputs, *args, **kwargs)
            finally:
                mark(before)

        for owner in owners:
            owner._engine_run_backward = _engine_run_backward

        def undo() -> None:
            for owner in owners:
                if owner._engine_run_backward is _engine_run_backward:
                    owner._engine_run_backward = run

        self._undo.append(undo)

    def _follow_optimizers(self) -> None:
        mark, marked = self.mark, self.marked
        before = [""]

        def begins(*_: Any) -> None:
            now = marked()
            # A step that failed has left its word behind.
            before[0] = now if now != "optimizer" else ""
            mark("optimizer")

        def ends(*_: Any) -> None:
            mark(before[0])

        for handle in (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)):
            self._undo.append(handle.remove)


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in what a module returns; the first ones of a long list."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEEPEST:
        if isinstance(value, dict):
            value = value.values()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        elif not isinstance(value, (tuple, list)):
            return
        for inner, _ in zip(value, range(_WIDEST), strict=False):
            yield from _tensors(inner, depth + 1)
