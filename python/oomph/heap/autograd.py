"""What tensors hold in C++, where the collector does not look: the graph of their history with what it saved, `.grad`, the
tensor that one is a view of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

Reference = tuple[str, str, Any]
"""How it is called (see `references.py`), and what is referred to."""


def of_tensor(tensor: torch.Tensor) -> Iterator[Reference]:
    for name in _names_of_references(tensor):
        try:
            value = getattr(tensor, name)
        except Exception:
            continue
        if value is not None:
            yield "attribute", name, value


def _names_of_references(tensor: torch.Tensor) -> Iterator[str]:
    if tensor._is_view():
        yield "_base"
    if tensor.is_leaf:
        if tensor.requires_grad:
            yield "grad"
    else:
        yield "grad_fn"
        if tensor.retains_grad:
            yield "grad"


def of_node(node: Any) -> Iterator[Reference]:
    """Of a node of the graph, such as `grad_fn`."""
    for at, (following, _) in enumerate(node.next_functions):
        if following is not None:
            yield "attribute", f"next_functions[{at}][0]", following
    variable = getattr(node, "variable", None)
    if isinstance(variable, torch.Tensor):
        yield "attribute", "variable", variable
    for name, saved in _names_of_saved(type(node)):
        yield from _saved(node, name, saved)


def _saved(node: Any, raw_name: str, name: str) -> Iterator[Reference]:
    try:
        found = getattr(node, raw_name)
        raws = found if isinstance(found, (tuple, list)) else [found]
        hooks = [raw.unpack_hook for raw in raws]
        # What a hook has packed is held instead of the tensor. Unpacking would run the program's code.
        if any(hook is not None for hook in hooks):
            values = [raw.data for raw in raws]
        else:
            value = getattr(node, name)
            values = list(value) if isinstance(found, (tuple, list)) else [value]
        yield from (("attribute", name, value) for value in [*values, *hooks] if value is not None)
    except Exception:
        return  # freed by a backward pass, or changed in place since


@cache
def _names_of_saved(kind: type) -> list[tuple[str, str]]:
    """As they were saved, and as they are given out."""
    raw = [name for name in dir(kind) if name.startswith("_raw_saved_")]
    return [(name, "saved_tensors" if name == "_raw_saved_tensors" else name.removeprefix("_raw")) for name in raw]
