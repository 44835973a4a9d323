"""Plausible values where a kernel would have computed some: indices that are valid and spread out.

They depend on nothing but the shape, so a run can be repeated. What they are for: a mixture of experts that routes by
`topk` of unknown scores gets experts that are about equally loaded, as a trained one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Arguments = dict[str, Any]
MakeUp = Callable[[Arguments, list[torch.Tensor]], "tuple[int, torch.Tensor] | None"]
"""Which of an operator's results to make up, and its values; from the arguments by name and all results."""

uneven: bool = False
"""Whether low numbers are more frequent than high ones: another plausible outcome, for the run with other values."""

# Knuth's multiplicative hash: consecutive numbers land far from each other.
_SCATTER = 2654435761


def spread(count: int, bound: int) -> torch.Tensor:
    """Numbers below `bound`, about equally often each unless they are `uneven`."""
    scattered = torch.arange(count, device="cpu") * _SCATTER % 2**32
    if uneven:
        scattered = (scattered >> 1) ** 2 >> 30
    return scattered * max(bound, 1) // 2**32


def ranking(rows: int, length: int, taken: int) -> torch.Tensor:
    """For each row the first `taken` entries of a permutation of `length` numbers."""
    # Steps that have no divisor in common with the length visit each number once.
    step = max(1, round(length * 0.618))
    while math.gcd(step, length) != 1:
        step += 1
    return (spread(rows, length)[:, None] + torch.arange(taken, device="cpu") * step) % max(length, 1)


def _along(result: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """A ranking along one dimension of a result."""
    if result.dim() == 0:
        return torch.zeros((), dtype=torch.int64, device="cpu")
    taken = result.shape[dim]
    rows = result.numel() // max(taken, 1)
    return ranking(rows, length, taken).reshape(*_without(result.shape, dim), taken).movedim(-1, dim)


def _without(shape: torch.Size, dim: int) -> list[int]:
    sizes = list(shape)
    del sizes[dim]
    return sizes


def _length(tensor: torch.Tensor, dim: int) -> int:
    return tensor.shape[dim] if tensor.dim() else 1


def _best(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor]:
    """`argmax` and its like: an index for each row, the last of the results."""
    dim, tensor, out = given.get("dim"), given["self"], results[-1]
    length = tensor.numel() if dim is None else _length(tensor, dim)
    return len(results) - 1, spread(out.numel(), length).reshape(out.shape)


def _best_of_dim(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor] | None:
    """`max`, `median` …: without a dimension they give a value and no index."""
    return _best(given, results) if len(results) == 2 else None


def _ranked(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor]:
    """`sort`, `topk`: different indices within each row."""
    return 1, _along(results[1], given["dim"], _length(given["self"], given["dim"]))


def _drawn(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor]:
    """`multinomial`."""
    bound = given["self"].shape[-1]
    if given["replacement"]:
        return 0, spread(results[0].numel(), bound).reshape(results[0].shape)
    return 0, _along(results[0], -1, bound)


def _searched(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor]:
    """`searchsorted`, `bucketize`: a place between the entries, or at either end."""
    sequence = given["sorted_sequence"] if "sorted_sequence" in given else given["boundaries"]
    return 0, spread(results[0].numel(), sequence.shape[-1] + 1).reshape(results[0].shape)


def _differs(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor] | None:
    """Unknown numbers are finite: a program that asks goes on. And none differs from itself, as NaN does."""
    if given["self"] is given["other"]:
        return 0, torch.zeros(results[0].shape, dtype=torch.bool, device="cpu")
    if isinstance(given["other"], float) and math.isinf(given["other"]):
        return 0, torch.ones(results[0].shape, dtype=torch.bool, device="cpu")
    return None


def _equals(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor] | None:
    """And they equal themselves: they are not NaN."""
    if given["self"] is given["other"]:
        return 0, torch.ones(results[0].shape, dtype=torch.bool, device="cpu")
    return None


def _likely(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor]:
    """`softmax`: probabilities that add up to 1, as whoever draws from them expects; others in each row."""
    shape, dim = results[0].shape, given["dim"]
    weights = (spread(results[0].numel(), 1000) + 1).double().reshape(shape)
    if uneven and weights.dim():
        weights = weights.movedim(dim, -1) / torch.arange(1, shape[dim] + 1, device="cpu")
        weights = weights.movedim(-1, dim)
    return 0, weights / weights.sum(dim, keepdim=True)


def _holds(given: Arguments, results: list[torch.Tensor]) -> tuple[int, torch.Tensor]:
    """`all`: conditions on unknown values hold."""
    return 0, torch.ones(results[0].shape, dtype=results[0].dtype, device="cpu")


COMPARISONS = frozenset(f"aten::{name}" for name in ("lt", "le", "gt", "ge", "eq", "ne"))
"""A comparison of single numbers takes each unknown one as the value it reads as: `assert mask.max() <= 1` holds."""

RESULTS: dict[str, MakeUp] = {
    "aten::_softmax": _likely,
    "aten::all": _holds,
    "aten::argmax": _best,
    "aten::argmin": _best,
    "aten::max": _best_of_dim,
    "aten::min": _best_of_dim,
    "aten::median": _best_of_dim,
    "aten::nanmedian": _best_of_dim,
    "aten::mode": _best_of_dim,
    "aten::kthvalue": _best_of_dim,
    "aten::topk": _ranked,
    "aten::sort": _ranked,
    "aten::multinomial": _drawn,
    "aten::searchsorted": _searched,
    "aten::bucketize": _searched,
    "aten::ne": _differs,
    "aten::eq": _equals,
}
