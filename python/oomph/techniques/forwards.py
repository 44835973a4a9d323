"""Techniques that act around the calls of outermost modules: autocast, offloading, bfloat16.

An outermost module is one that the program calls itself, such as the model, and not a module inside another. Autocast
and offloading belong around the forward pass and the loss, and the loss is often computed outside all modules: so they
stay on from the first call in training until the backward pass or the optimizer's step begins.

Only the main thread counts: PyTorch calls modules from others, to recompute checkpointed blocks and in `DataParallel`,
and takes the settings of the main thread there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map_only
from torch.utils.data import get_worker_info

from .technique import Technique, listed, refused

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class Listener:
    """Events of a forward pass."""

    def begin(self, module: torch.nn.Module, trains: bool) -> None:
        """The program calls an outermost module."""

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """What the module gets."""
        return args, kwargs

    def end(self) -> None:
        """The call has ended, by an exception perhaps."""

    def leave(self) -> None:
        """The backward pass or the optimizer's step begins."""


class Forwards:
    """Follows the program's forward passes; does nothing before the first listener."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.depth = 0
        self.before_id = 0

    def listen(self, listener: Listener) -> None:
        if not self.listeners:
            self._install()
        self.listeners.append(listener)

    def _install(self) -> None:
        hooks.register_module_forward_pre_hook(self._ask_for_keywords)
        self.before_id = hooks.register_module_forward_pre_hook(self._before).id  # type: ignore[arg-type]
        hooks.register_module_forward_hook(self._after, always_call=True)
        register_optimizer_step_pre_hook(self._before_step)
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def leaving(*args: Any, **kwargs: Any) -> None:
            self._leave()
            backward(*args, **kwargs)

        torch.autograd.backward = leaving

    def _ask_for_keywords(self, module: torch.nn.Module, _args: Any) -> None:
        """A hook for all modules does not get keyword arguments; one with an entry in the module's own list does."""
        if self._is_outermost():
            module._forward_pre_hooks_with_kwargs[self.before_id] = True

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Inputs | None:
        if not is_program():
            return None
        self.depth += 1
        if self.depth > 1 or kwargs is None:
            return None
        trains = module.training and torch.is_grad_enabled()
        for listener in self.listeners:
            listener.begin(module, trains)
            args, kwargs = listener.inputs(args, kwargs)
        return args, kwargs

    def _after(self, *_: Any) -> None:
        if is_program():
            self.depth -= 1
            if self.depth == 0:
                for listener in reversed(self.listeners):
                    listener.end()

    def _before_step(self, *_: Any) -> None:
        self._leave()

    def _is_outermost(self) -> bool:
        return self.depth == 0 and is_program()

    def _leave(self) -> None:
        if self._is_outermost():
            for listener in reversed(self.listeners):
                listener.leave()


def is_program() -> bool:
    """Whether the program itself runs here: not the compiler, which would trace us, nor the autograd engine, nor a worker of
    a data loader, whose transforms are modules as well."""
    if torch.compiler.is_compiling() or get_worker_info() is not None:
        return False
    return threading.current_thread() is threading.main_thread() and torch._C._current_graph_task_id() == -1


def model_name(module: torch.nn.Module) -> str:
    """The class of a model, below what others have wrapped around it."""
    while isinstance(inner := getattr(module, "module", getattr(module, "_orig_mod", None)), torch.nn.Module):
        module = inner
    return type(module).__name__


def has_parameters(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None


class Amp(Technique, Listener):
    """`torch.autocast("cuda", torch.bfloat16)` around forward passes and losses; parameters stay as they are."""

    def __init__(self, forwards: Forwards) -> None:
        self.forwards = forwards
        self.open = ExitStack()
        self.is_open = False
        self.trains = False
        self.is_own = False
        self.programs_own = False
        self.models: dict[str, None] = {}

    def install(self) -> None:
        self.forwards.listen(self)
        enter = torch.autocast.__enter__
        technique = self

        @functools.wraps(enter)
        def __enter__(self: torch.autocast) -> Any:
            technique._notice(self)
            return enter(self)  # type: ignore[no-untyped-call]

        torch.autocast.__enter__ = __enter__  # type: ignore[method-assign]

    def outcome(self) -> str:
        if self.programs_own:
            return refused("the program already uses autocast")
        if not self.models:
            return refused("no module was called")
        return f"autocast(bfloat16) around {listed(self.models)} and what follows up to the backward pass"

    def begin(self, module: torch.nn.Module, trains: bool) -> None:
        if self.programs_own:
            return
        if has_parameters(module):
            self.models[model_name(module)] = None
        if not self.is_open:
            self.is_own = True
            self.open.enter_context(torch.autocast("cuda", torch.bfloat16))
            self.is_own = False
            self.is_open, self.trains = True, trains

    def end(self) -> None:
        # Without gradients there is no backward pass to end it.
        if not self.trains:
            self._close()

    def leave(self) -> None:
        self._close()

    def _notice(self, autocast: torch.autocast) -> None:
        """The program's own; one that it has switched off (`enabled=args.amp`) does not count."""
        if not self.is_own and autocast.device == "cuda" and autocast._enabled and is_program():
            self.programs_own = True
            self._close()

    def _close(self) -> None:
        self.open.close()
        self.is_open = False


class Offload(Technique, Listener):
    """`torch.autograd.graph.save_on_cpu(pin_memory=True)` around forward passes and losses in training."""

    def __init__(self, forwards: Forwards) -> None:
        self.forwards = forwards
        self.open = ExitStack()
        self.is_open = False
        self.models: dict[str, None] = {}
        self.programs_own = False

    def install(self) -> None:
        self.forwards.listen(self)

    def outcome(self) -> str:
        if self.models:
            return f"what {listed(self.models)} saves for the backward pass is in pinned host memory"
        if self.programs_own:
            return refused("the program has its own hooks for what the backward pass needs")
        return refused("no module was called in training")

    def begin(self, module: torch.nn.Module, trains: bool) -> None:
        if not trains:
            return
        if not self.is_open and _has_saved_tensor_hooks():
            self.programs_own = True
            return
        if has_parameters(module):
            self.models[model_name(module)] = None
        if not self.is_open:
            self.open.enter_context(torch.autograd.graph.save_on_cpu(pin_memory=True))
            self.is_open = True

    def leave(self) -> None:
        self.open.close()
        self.is_open = False


def _has_saved_tensor_hooks() -> bool:
    """Hooks are a stack: ours may outlast a call, so they must not lie on top of the program's."""
    top: Callable[[bool], Any] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None


class Bf16(Technique, Listener):
    """Parameters, buffers and inputs of the program's modules in bfloat16; gradients and optimizer states follow.

    Modules are converted when they come to the GPU, so that what is made from them later (copies for averages, master
    weights) sees the new type, and otherwise at their first call. `Module.to` keeps the parameter objects: an optimizer
    that already has them goes on with them.
    """

    LOSSES = ("mse_loss", "huber_loss", "binary_cross_entropy")
    """Losses whose backward pass insists that the target has the type of the input."""

    def __init__(self, forwards: Forwards) -> None:
        self.forwards = forwards
        self.models: dict[str, None] = {}
        self.others: dict[str, torch.dtype] = {}
        self.has_converted = False
        # Before it is ours.
        self.to = torch.nn.Module.to

    def install(self) -> None:
        self.forwards.listen(self)
        for name in ("to", "cuda"):
            setattr(torch.nn.Module, name, self._converting(getattr(torch.nn.Module, name)))
        for name in self.LOSSES:
            setattr(torch.nn.functional, name, _with_targets_type(getattr(torch.nn.functional, name)))

    def outcome(self) -> str:
        if self.has_converted and self.models:
            return f"parameters and inputs of {listed(self.models)} in bfloat16"
        if self.others:
            name, dtype = next(iter(self.others.items()))
            return refused(f"the parameters of {name} are {str(dtype).removeprefix('torch.')} already")
        return refused("no module was called")

    def begin(self, module: torch.nn.Module, trains: bool) -> None:
        self._convert(module)
        parameter = next(module.parameters(), None)
        if parameter is not None:
            if self.has_converted and parameter.dtype == torch.bfloat16:
                self.models[model_name(module)] = None
            else:
                self.others[model_name(module)] = parameter.dtype

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        if not self.has_converted:
            return args, kwargs
        converted: Inputs = tree_map_only(torch.Tensor, _converted, (args, kwargs))
        return converted

    def _converting(self, move: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
        @functools.wraps(move)
        def moving(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
            moved = move(module, *args, **kwargs)
            self._convert(moved)
            return moved

        return moving

    def _convert(self, module: torch.nn.Module) -> None:
        if any(_is_convertible(parameter) for parameter in module.parameters()):
            self.to(module, torch.bfloat16)
            self.has_converted = True


def _is_convertible(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype == torch.float32


def _converted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if _is_convertible(tensor) else tensor


def _with_targets_type(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(loss)
    def same_type(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if input.dtype == torch.bfloat16 and target.dtype == torch.float32:
            target = target.to(input.dtype)
        return loss(input, target, *args, **kwargs)

    return same_type
