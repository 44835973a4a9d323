"""Operators whose results have sizes that depend on values.

On a GPU a kernel counts, and the operator reads the count from the device before it allocates its result. Here the count
is worked out first, on the CPU, and the library gives it to the operator as the answer to that read; so the operator
allocates just what it would. If the values are not known, a count is made up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import made_up
from .device_memory import KNOWN, MADE_UP, UNKNOWN
from .dispatch_keys import own_work
from .handlers import KINDS, Args, Handlers, Kwargs, capturing, tensors_in
from .operators import Operator

Results = list["torch.Tensor | None"]
"""Values for an operator's results, in order; None: unknown."""


def _made_up_nonzero(count: int, given: Kwargs) -> Results:
    """Every second element, as far as the count goes."""
    shape = given["self"].shape
    flat = torch.arange(count, device="cpu") * max(1, given["self"].numel() // max(count, 1))
    places = []
    for size in reversed(shape):
        places.append(flat % size)
        flat = flat // size
    return [torch.stack(places[::-1], dim=1) if places else torch.empty(count, 0, dtype=torch.int64, device="cpu")]


def _made_up_unique(count: int, given: Kwargs) -> Results:
    """Values in no order; the places that they come from and how often they occur."""
    tensor, dim = given["self"], given.get("dim")
    total = tensor.numel() if dim is None else tensor.shape[dim]
    inverse = made_up.spread(total, count)
    occurrences = torch.bincount(inverse, minlength=count)
    return [None, inverse.reshape(tensor.shape) if dim is None else inverse, occurrences]


def _made_up_repeats(count: int, given: Kwargs) -> Results:
    return [torch.arange(count, device="cpu")]


def _made_up_boxes(count: int, given: Kwargs) -> Results:
    return [made_up.ranking(1, given["scores"].shape[0], count)[0]]


def _unique_total(given: Kwargs) -> int:
    dim = given.get("dim")
    tensor: torch.Tensor = given["self"]
    return tensor.numel() if dim is None else tensor.shape[dim]


@dataclass(frozen=True)
class Counted:
    """How one of these operators counts."""

    total: Callable[[Kwargs], int]
    """The most that it can count."""
    made_up: Callable[[int, Kwargs], Results]
    halved: bool = True
    """Whether about half of that is plausible for unknown values; otherwise all of it."""
    checks: tuple[int, ...] = ()
    """What it reads from the device after the count: that all is well."""

    def plausible(self, given: Kwargs, unknown: int) -> int:
        """A count for unknown values; another one in the run with other values, since nobody knows it."""
        total, part = self.total(given), (2 if self.halved else 1) << unknown
        return (total + part - 1) // part


_UNIQUE = Counted(_unique_total, _made_up_unique)

OPERATORS: dict[str, Counted] = {
    "aten::nonzero": Counted(lambda given: given["self"].numel(), _made_up_nonzero),
    "aten::_unique": _UNIQUE,
    "aten::_unique2": _UNIQUE,
    "aten::unique_dim": _UNIQUE,
    "aten::unique_consecutive": _UNIQUE,
    "aten::unique_dim_consecutive": _UNIQUE,
    "aten::repeat_interleave": Counted(lambda given: given["repeats"].numel(), _made_up_repeats, halved=False, checks=(1,)),
    # Not a count, but read in the same way: whether there is no difference.
    "aten::equal": Counted(lambda given: 0, lambda count, given: []),
    "torchvision::nms": Counted(lambda given: given["scores"].numel(), _made_up_boxes),
}


class Counting:
    """The handler for these operators."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers

    def __call__(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        handlers, state, counted = self.handlers, self.handlers.state, OPERATORS[operator.name]
        try:
            given = operator.bound(args, kwargs)
            if given.get("output_size") is not None or capturing():
                return handlers.any(operator, below, args, kwargs)
            ordered = state.count if operator.name == "aten::nonzero" else None
            value = UNKNOWN if ordered is not None else handlers.known_inputs(operator, args, kwargs)
            count, contents = self._result(operator, counted, given, value, ordered, args, kwargs)
            if value != KNOWN and not state.quiet:
                handlers.reads.note(operator.name, KINDS[value], tensors_in(args)[0].nbytes)
            del given
        except Exception:
            return handlers.opaque(operator, below, args, kwargs)
        result = self._run(operator, counted, count, below, args, kwargs)
        handlers.forget(operator, args, kwargs)
        for output, content in zip(tensors_in(result), contents):
            if content is not None:
                handlers.write(output, content, value or MADE_UP)
        return result

    def _result(
        self, operator: Operator, counted: Counted, given: Kwargs, value: int, ordered: int | None,
        args: Args, kwargs: Kwargs,
    ) -> tuple[int, Results]:  # fmt: skip
        """The count, and values for the results as far as there are any."""
        with own_work():
            if value != UNKNOWN:
                computed = self.handlers.on_cpu(operator, args, kwargs, {})
                if isinstance(computed, bool):
                    return int(computed), []
                contents = list(tensors_in(computed))
                return contents[0].shape[given.get("dim") or 0], [*contents]
            count = ordered if ordered is not None else counted.plausible(given, self.handlers.unknown)
            return count, counted.made_up(count, given)

    def _run(self, operator: Operator, counted: Counted, count: int, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """Runs the operator, with the count as the answer to what it reads from the device."""
        memory, state = self.handlers.memory, self.handlers.state
        # This one counts by way of a `nonzero` that it calls.
        by_nonzero = operator.name == "torchvision::nms"
        state.count = count if by_nonzero else None
        state.quiet += 1
        if not by_nonzero:
            for answer in (count, *counted.checks):
                memory.answer(answer)
        try:
            return operator.run(below, *args, **kwargs)
        finally:
            state.quiet -= 1
            state.count = None
            memory.unanswered()
