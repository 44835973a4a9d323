"""What is found out by trying it on tensors of our own, without the program's code taking part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class Trial(Generic[T]):
    """`find` is asked once; `None` as long as it cannot be asked. Not in a thread of its own: torch may be in the middle of
    its import."""

    def __init__(self, find: Callable[[], T]) -> None:
        self._find = find
        self._found: list[T] = []

    def result(self) -> T | None:
        if not self._found and not _are_hooks_active():
            modes: Any = torch._C
            with modes.DisableTorchFunction(), modes._DisableTorchDispatch(), torch.inference_mode(False), torch.enable_grad():
                self._found.append(self._find())
        return self._found[0] if self._found else None


def _are_hooks_active() -> bool:
    """Whether the program wants to be asked about every tensor that is saved now. Before torch 2.7 this is not known."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None
