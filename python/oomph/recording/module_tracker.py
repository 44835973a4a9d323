"""Where the program is: in which module's forward, in whose backward, in the optimizer. Each event of the history says it.

Modules are seen through `Module.__call__`, which every call goes through: hooks would send each of them through PyTorch's
slow path, and would be seen by the program. In `backward()` no Python runs; but autograd goes through the
nodes in the opposite order of the forward pass, so it is enough to know where each module's part begins: at the node of
what the module returned, and, for what its parent did between two modules, at the node of what the next one was given.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..interpreter.dynamo import know_as_call, never_traced
from ..interpreter.errors import keep
from ..interpreter.patching import look_like, makes_calls
from .names import Names

_MAX_HOOKED = 4096
"""Tensors remembered as hooked; they live for one backward pass."""
_MAX_MODULES = 100_000
"""Bound for programs that create modules all the time."""
_MAX_DEPTH = 3
_MAX_WIDTH = 8
"""How far to look for tensors in what a module returns."""


class FollowedModule:
    """A module, with the words for it and what autograd calls when it comes to the module's part."""

    __slots__ = ("backward", "forward", "hook", "module", "path")

    def __init__(self, module: Module, path: str, number: int, tracker: ModuleTracker) -> None:
        self.module = weakref.ref(module)
        self.path = path
        # A number: every event has a copy of these words, and C++ takes memory for those of more than 15 letters.
        self.forward = f"forward {number}"
        self.backward = f"backward {number}"
        self.hook = tracker.hook(self.backward)


class _Here(threading.local):
    """Where a thread is: in the forward of this module, with this said about it."""

    followed: FollowedModule | None = None
    text = ""


class ModuleTracker:
    """Reports to `mark` where each thread is; `marked` returns the last report. `entered` and `left` are called for the modules
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
        self.is_on = False
        """Whether this is the process whose modules are followed, and it is not over. Otherwise nothing is done. Not asked of the
        system, which may take as long as a small module; the recorder takes care of forks."""
        self.follows_modules = True
        """Whether to mark what each module allocates, or only that a module runs which no other has called."""
        self.follows_backward = True
        """Whether to mark what each module's part in `backward()` allocates."""
        self._modules: dict[int, FollowedModule] = {}
        self._hooked: dict[int, weakref.ref[torch.Tensor]] = {}
        self._outside = self.hook("backward")
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        self.is_on = True
        self._follow_modules()
        self._follow_backward()
        self._follow_optimizers()

    def remove(self) -> None:
        """Also where others have put functions around ours: those call on, and ours do nothing more."""
        self.is_on = False
        while self._undo:
            self._undo.pop()()

    def hook(self, text: str) -> torch.Tensor:
        """What autograd calls when it comes to a part of the program: the hook of an empty tensor of our own.

        PyTorch lets a node have the hooks of a tensor. That takes a third of the time of a hook that is registered with
        the node, and leaves the program's own tensors alone.
        """
        mark, of = self.mark, self

        @never_traced
        def begins(_gradient: Any) -> None:
            if of.is_on:
                try:
                    mark(text)
                except Exception as error:
                    of.fail(error)

        # Not for the program's own modes to see.
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            bearer = torch.empty(0, device="cpu")
        bearer._backward_hooks = OrderedDict(((0, begins),))
        return bearer

    def _follow_modules(self) -> None:
        call: Callable[..., Any] = Module.__call__
        # A program that has put a function of its own there finds it called.
        is_pytorchs = makes_calls(call, "_compiled_call_impl", "_call_impl")
        here, mark, modules = self.here, self.mark, self._modules
        is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
        of, follow, begin, left, marked = self, self._follow, self._begin, self.left, self.marked

        # Every call of a module goes through here: each line counts. `self` and its attributes are called as PyTorch does it.
        def _wrapped_call_impl(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            # First of all: `torch.compile` and `torch.export` trace this function, and take what PyTorch's own does.
            if is_compiling() or not of.is_on or (here.followed is not None and not of.follows_modules):
                if not is_pytorchs:
                    return call(self, *args, **kwargs)
                if self._compiled_call_impl is not None:
                    return self._compiled_call_impl(*args, **kwargs)
                return self._call_impl(*args, **kwargs)
            parent, before = here.followed, here.text
            followed = text = None
            has_gradients = has_mark = False
            try:
                try:
                    followed = modules.get(id(self))
                    if parent is None:
                        before = marked()
                    if followed is None or parent is None or followed.module() is not self:
                        followed = follow(self, parent, before, args, kwargs)
                    has_gradients = of.follows_backward and is_grad_enabled()
                    if has_gradients:
                        begin((args, kwargs) if kwargs else args, parent)
                    # Inside `backward()` a forward is a recomputation.
                    text = followed.backward if before.startswith("backward") else followed.forward
                    here.followed, here.text = followed, text
                    has_mark = of.follows_modules
                    if has_mark:
                        mark(text)
                except Exception as error:
                    of.fail(error)
                if not is_pytorchs:
                    result = call(self, *args, **kwargs)
                elif self._compiled_call_impl is not None:
                    result = self._compiled_call_impl(*args, **kwargs)
                else:
                    result = self._call_impl(*args, **kwargs)
            finally:
                here.followed, here.text = parent, before
                # After a failed kernel every call into CUDA fails: the program's own exception is the one to be seen.
                if has_mark and of.is_on:
                    try:
                        mark(before)
                    except Exception as error:
                        of.fail(error)
            if has_gradients:
                begin(result, followed)
            if parent is None and followed is not None and text is followed.forward and of.is_on:
                left()
            return result

        ours = look_like(_wrapped_call_impl, call, "_compiled_call_impl", "_call_impl")
        # PyTorch's own has two names, of which `pickle` takes the other.
        places = [name for name in ("__call__", "_wrapped_call_impl") if vars(Module).get(name) is call]
        for name in places:
            setattr(Module, name, ours)
        know_as_call(ours, instead_of=call)

        def undo() -> None:
            for name in places:
                if vars(Module).get(name) is ours:
                    setattr(Module, name, call)
            know_as_call(call, instead_of=ours)

        self._undo.append(undo)

    @never_traced
    def fail(self, error: Exception) -> None:
        """Leaves the program alone from now on: what cannot be marked now cannot be marked later."""
        keep(error)
        self.is_on = False

    @never_traced
    def _follow(self, module: Module, parent: FollowedModule | None, text: str, args: Any, kwargs: Any) -> FollowedModule:
        """The entry of a module that is not known yet, or that nothing else has called."""
        try:
            if parent is None and not text.startswith("backward"):
                self.entered(module, args, kwargs)
            if len(self._hooked) > _MAX_HOOKED:
                self._hooked.clear()
            known = self._modules.get(id(module))
            if known is not None and known.module() is module:
                return known
            # With a new outermost module, names that were given without it may have changed.
            if len(self._modules) > _MAX_MODULES or (parent is None and not self.names.knows(module)):
                self._modules.clear()
            path = self.names.of_module(module, None if parent is None else parent.module())
        except Exception as error:
            keep(error)
            path = type(module).__name__
        followed = self._modules[id(module)] = FollowedModule(module, path, self.paths.setdefault(path, len(self.paths)), self)
        return followed

    @never_traced
    def _begin(self, value: Any, followed: FollowedModule | None) -> None:
        """Has autograd say that it is at `followed` when it comes to the nodes that made `value`, if they do not have one."""
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if compiled is not None and getattr(compiled, "compiled_autograd_enabled", False):
            return  # it would have to compile the hook
        if _has_profiler():
            return
        hooked = self._hooked
        hook = self._outside if followed is None else followed.hook
        try:
            for tensor in (value,) if type(value) is torch.Tensor else tensors_in(value):
                known = hooked.get(id(tensor))
                if known is not None and known() is tensor:
                    continue
                with torch._C.DisableTorchFunction():
                    node = tensor.grad_fn
                if node is not None:
                    node._register_hook_dict(hook)
                    hooked[id(tensor)] = weakref.ref(tensor)
        except Exception as error:
            keep(error)  # containers may not let us look; tensors of other kinds may have no nodes, or nodes that take no hooks

    def _follow_backward(self) -> None:
        """Marks what autograd does before it comes to any module, and comes back to where the program was."""
        owners: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)
        if not all(hasattr(owner, "_engine_run_backward") for owner in owners):
            return
        run: Callable[..., Any] = owners[0]._engine_run_backward
        if not makes_calls(run, "run_backward", "getEffectiveLevel") or owners[1]._engine_run_backward is not run:
            return
        mark, marked, begin, of = self.mark, self.marked, self._begin, self
        Variable, log = owners[0].Variable, owners[0].log

        def _engine_run_backward(t_outputs, *args, **kwargs):  # type: ignore[no-untyped-def]
            # PyTorch's own looks at the graph first if it is to log it.
            if not of.is_on or not of.follows_backward or log.getEffectiveLevel() <= logging.DEBUG:
                return run(t_outputs, *args, **kwargs)
            before = None
            try:
                begin(tuple(t_outputs), None)
                before = marked()
            except Exception as error:
                of.fail(error)
            try:
                return Variable._execution_engine.run_backward(t_outputs, *args, **kwargs)
            finally:
                if before is not None and of.is_on:
                    try:
                        mark(before)
                    except Exception as error:
                        of.fail(error)

        ours = look_like(_engine_run_backward, run, "run_backward")
        for owner in owners:
            owner._engine_run_backward = ours

        def undo() -> None:
            for owner in owners:
                if owner._engine_run_backward is ours:
                    owner._engine_run_backward = run

        self._undo.append(undo)

    def _follow_optimizers(self) -> None:
        mark, marked, of = self.mark, self.marked, self
        before = [""]

        @never_traced
        def begins(*_: Any) -> None:
            if not of.is_on:
                return
            try:
                now = marked()
                # A step that failed has left its word behind.
                before[0] = now if now != "optimizer" else ""
                mark("optimizer")
            except Exception as error:
                of.fail(error)

        @never_traced
        def ends(*_: Any) -> None:
            if not of.is_on:
                return
            try:
                mark(before[0])
            except Exception as error:
                of.fail(error)

        for handle in (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)):
            self._undo.append(handle.remove)


def _has_profiler() -> bool:
    """Whether `cProfile` is on. From Python 3.12 it counts the calls of all threads as those of one: a hook that autograd calls
    in its own thread would end the functions that wait for `backward()`."""
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID) is not None


def tensors_in(value: Any, width: int = _MAX_WIDTH, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in what a module is given or returns; of a long container the first `width` entries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _MAX_DEPTH:
        if isinstance(value, dict):
            value = value.values()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        elif not isinstance(value, (tuple, list)):
            return
        for inner, _ in zip(value, range(width), strict=False):
            yield from tensors_in(inner, width, depth + 1)
