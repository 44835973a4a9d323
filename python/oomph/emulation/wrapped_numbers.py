"""Numbers among the tensors of an operator: the 1 of `x + 1`.

PyTorch passes such a number on as a tensor with a mark ("wrapped number") that keeps it from deciding the result's type.
A fallback in Python gets the bare number and has to give a marked tensor back; Python cannot make one. But autograd
keeps one for the backward pass, and copies of it keep the mark.
"""

from __future__ import annotations

from typing import Any

import torch

from .dispatch_keys import own_work

# Programs have few constants; those that count steps would fill the memory.
_MAX_NUMBERS = 1024


class WrappedNumbers:
    def __init__(self) -> None:
        with torch.enable_grad():
            leaf = torch.ones((), requires_grad=True, device="cpu", dtype=torch.float32)
            self._marked: dict[type, torch.Tensor] = {
                type(number): (leaf * number).grad_fn._saved_other  # type: ignore[union-attr]
                for number in (True, 1, 1.0, 1j)
            }
        self._made: dict[tuple[type, Any], torch.Tensor] = {}

    def replace(self, args: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, ...]:
        """The arguments with numbers at places of tensors replaced."""
        for place in places:
            if place < len(args) and type(args[place]) in self._marked:
                args = (*args[:place], self._tensor(args[place]), *args[place + 1 :])
        return args

    def _tensor(self, number: Any) -> torch.Tensor:
        # 0.0 and -0.0 are equal, and NaN is not.
        key = (type(number), repr(number) if isinstance(number, (float, complex)) else number)
        tensor = self._made.get(key)
        if tensor is None:
            with own_work():
                tensor = self._marked[type(number)].data
                tensor.set_(torch.scalar_tensor(number, dtype=tensor.dtype, device="cpu"))  # type: ignore[call-overload]
            if len(self._made) >= _MAX_NUMBERS:
                self._made.clear()
            self._made[key] = tensor
        return tensor
