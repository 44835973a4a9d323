"""Techniques that change how optimizers work: how gradients are cleared, and which implementation takes the steps."""

from __future__ import annotations

import functools
import inspect
import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from .technique import Technique, listed, refused


class SetToNone(Technique):
    """`zero_grad(set_to_none=True)`, whatever the program asks for."""

    def __init__(self) -> None:
        self.calls = 0
        self.changed = 0

    def install(self) -> None:
        torch.optim.Optimizer.zero_grad = self._setting(torch.optim.Optimizer.zero_grad)  # type: ignore[method-assign]
        torch.nn.Module.zero_grad = self._setting(torch.nn.Module.zero_grad)  # type: ignore[method-assign]

    def outcome(self) -> str:
        if self.changed:
            return "zero_grad(set_to_none=True) where the program says False"
        if self.calls:
            return refused("set_to_none=True is already the default, and the program does not say otherwise")
        return refused("the program never calls zero_grad")

    def _setting(self, zero_grad: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(zero_grad)
        def to_none(target: Any, set_to_none: bool = True) -> None:
            self.calls += 1
            self.changed += not set_to_none
            zero_grad(target, set_to_none=True)

        return to_none


class Implementation(Technique):
    """Has the optimizers of `torch.optim` constructed with another implementation."""

    def __init__(self, option: str, arguments: dict[str, bool | None]) -> None:
        self.option = option
        self.arguments = arguments
        self.changed: dict[str, None] = {}
        self.reasons: dict[str, None] = {}
        self.seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    @abstractmethod
    def reason_against(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Why an optimizer that is constructed with such arguments stays as it is."""

    @abstractmethod
    def done(self, names: str) -> str:
        """What was done to these optimizers."""

    def has_choice(self, kind: type[torch.optim.Optimizer]) -> bool:
        return self.option in inspect.signature(kind.__init__).parameters

    def install(self) -> None:
        kinds = {kind for kind in vars(torch.optim).values() if inspect.isclass(kind)}
        for kind in kinds:
            if issubclass(kind, torch.optim.Optimizer) and "__init__" in vars(kind) and self.has_choice(kind):
                kind.__init__ = self._choosing(kind.__init__)  # type: ignore[method-assign]
        torch.optim.Optimizer.__init__ = self._noticing(torch.optim.Optimizer.__init__)  # type: ignore[method-assign]

    def outcome(self) -> str:
        if self.changed:
            return self.done(listed(self.changed))
        return refused(listed(self.reasons) if self.reasons else "no optimizer was created")

    def _choosing(self, construct: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(construct)
        technique = self

        @functools.wraps(construct)
        def __init__(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            # One class may call the constructor of another.
            if self not in technique.seen:
                technique.seen.add(self)
                bound = signature.bind(self, *args, **kwargs)
                bound.apply_defaults()
                if technique._choose(type(self).__name__, bound.arguments):
                    args, kwargs = bound.args[1:], bound.kwargs
            construct(self, *args, **kwargs)

        return __init__

    def _choose(self, name: str, arguments: dict[str, Any]) -> bool:
        reason = self.reason_against(name, arguments)
        if reason is not None:
            self.reasons[reason] = None
            return False
        arguments.update(self.arguments)
        self.changed[name] = None
        return True

    def _noticing(self, construct: Callable[..., None]) -> Callable[..., None]:
        """Optimizers without a choice are seen only when they call the constructor of their base."""
        technique = self

        @functools.wraps(construct)
        def __init__(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            if self not in technique.seen:
                technique.reasons[f"{type(self).__name__} has only one implementation"] = None
            construct(self, *args, **kwargs)

        return __init__


class Fused(Implementation):
    """`fused=True`: a step is a few kernels that need no intermediate results."""

    def __init__(self) -> None:
        super().__init__("fused", {"fused": True, "foreach": None})

    def has_choice(self, kind: type[torch.optim.Optimizer]) -> bool:
        # Adagrad has the argument, but only for the CPU.
        return super().has_choice(kind) and not issubclass(kind, torch.optim.Adagrad)

    def reason_against(self, name: str, arguments: dict[str, Any]) -> str | None:
        if arguments["fused"]:
            return f"{name} is fused already"
        if arguments.get("differentiable"):
            return f"{name} is differentiable, which the fused implementation cannot be"
        return None

    def done(self, names: str) -> str:
        return f"fused=True for {names}"


class ForeachOff(Implementation):
    """`foreach=False`: parameters one after the other, so that intermediate results are small."""

    def __init__(self, give_way: bool) -> None:
        super().__init__("foreach", {"foreach": False})
        self.give_way = give_way
        """Whether the fused implementation is wanted as well, which has no such choice."""

    def reason_against(self, name: str, arguments: dict[str, Any]) -> str | None:
        if "fused" in arguments and (arguments["fused"] or self.give_way):
            return f"{name} is fused, which has no intermediate results"
        if arguments["foreach"] is False:
            return f"{name} already goes through the parameters one by one"
        return None

    def done(self, names: str) -> str:
        return f"foreach=False for {names}"


class Adafactor(Technique):
    """`torch.optim.Adafactor` for Adam and AdamW: a row and a column of averages for each matrix, not two matrices."""

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        self.others: dict[str, None] = {}

    def install(self) -> None:
        if not hasattr(torch.optim, "Adafactor"):
            return
        for kind in (torch.optim.AdamW, torch.optim.Adam):
            kind.__init__ = self._replacing(kind.__init__)  # type: ignore[method-assign]
        construct = torch.optim.Optimizer.__init__
        technique = self

        @functools.wraps(construct)
        def __init__(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            technique.others[type(self).__name__] = None
            construct(self, *args, **kwargs)

        torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]

    def outcome(self) -> str:
        if self.changed:
            return f"torch.optim.Adafactor in place of {listed(self.changed)}"
        if not hasattr(torch.optim, "Adafactor"):
            return refused(f"torch {torch.__version__} has no Adafactor")
        if self.others:
            return refused(f"{listed(self.others)} is neither Adam nor AdamW")
        return refused("no optimizer was created")

    def _replacing(self, construct: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(construct)
        technique = self

        @functools.wraps(construct)
        def __init__(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            # A subclass of the program, or a library, relies on the states of its base.
            if type(self) not in (torch.optim.Adam, torch.optim.AdamW):
                construct(self, *args, **kwargs)
                return
            arguments = signature.bind(self, *args, **kwargs).arguments
            technique.changed[type(self).__name__] = None
            taken = {name: arguments[name] for name in ("params", "lr", "weight_decay") if name in arguments}
            self.__class__ = torch.optim.Adafactor
            torch.optim.Adafactor.__init__(self, **taken)  # type: ignore[arg-type]

        return __init__
