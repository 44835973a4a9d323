"""Stands in the way of every operator, to meet the tensors that go in and come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

See = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
_PLAIN = torch._C._disabled_torch_dispatch_impl


def _never_traced(function: Callable[..., Any]) -> bool:
    """Tells Dynamo to leave a function alone; without the wrapper (and the import) that PyTorch's decorator takes."""
    try:
        dynamo = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
    except Exception:
        return False
    return True


class CpuMode(TorchDispatchMode):
    supports_higher_order_operators = True
    """Without it, a program that uses one (`torch.cond`, flex attention) would fail."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self.see: See | None = see

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return not _never_traced(cls.__torch_dispatch__)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
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

    def leave(self) -> None:
        """Takes the mode off this thread's stack; where others lie above it, it stays and does nothing."""
        self.see = None
        depth = torch._C._len_torch_dispatch_stack()
        if depth > 0 and torch._C._get_dispatch_stack_at(depth - 1) is self:
            self.__exit__(None, None, None)
