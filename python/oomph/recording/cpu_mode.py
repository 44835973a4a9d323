"""Stands in the way of every operator, to meet the tensors that go in and come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..interpreter.dynamo import skip_all

See = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
_PLAIN = torch._C._disabled_torch_dispatch_impl


class CpuMode(TorchDispatchMode):
    supports_higher_order_operators = True
    """Without it, a program that uses one (`torch.cond`, flex attention) would fail."""

    def __init__(self, see: See) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.see: See | None = see
        self.is_entered = False
        """Whether it is on the stack of the thread that has entered it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return not skip_all(cls.__torch_dispatch__)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        for kind in types:
            if kind.__torch_dispatch__ is not _PLAIN and not torch._C._len_torch_dispatch_stack():
                # A tensor subclass: what it does inside comes back here, with the tensors that have memory. But a mode
                # below ours (that of fake tensors) has to get the subclass itself.
                return NotImplemented
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.see is not None:
            self.see(args, kwargs, out)
        return out

    def enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]
        self.is_entered = True

    def leave(self) -> None:
        """Takes the mode off this thread's stack. From another thread, or below PyTorch's own modes, it only goes quiet."""
        self.see = None
        above: list[Any] = []
        for at in reversed(range(torch._C._len_torch_dispatch_stack())):
            mode = torch._C._get_dispatch_stack_at(at)
            if mode is self:
                break
            above.insert(0, mode)
        else:
            return
        if not above:
            self.__exit__(None, None, None)
            self.is_entered = False
        elif not any(mode.is_infra_mode() for mode in above):
            for _ in (self, *above):
                torch._C._pop_torch_dispatch_stack(None)
            for mode in above:
                torch._C._push_on_torch_dispatch_stack(mode)
            self._leave_flags_to(above[0])
            self.is_entered = False

    def _leave_flags_to(self, above: TorchDispatchMode) -> None:
        """What the mode above ours restores when it ends is what ours found when it began."""
        for name, flags in vars(self).items():
            others = getattr(above, name, None)
            if name.startswith("old_") and isinstance(flags, deque) and flags and others:
                others[-1] = flags.pop()
