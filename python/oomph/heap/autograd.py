"""What tensors hold in C++, where the collector does not look: the graph of their history with what it saved, `.grad`, the
tensor that one is a view of."""

from __future__ import annotations

from collections.abc import Iterator
from types import GetSetDescriptorType
from typing import Any

import torch

from ..interpreter.errors import keep
from . import attributes

Reference = tuple[str, Any]
"""The name of an attribute, and what is referred to."""


def is_node(kind: type) -> bool:
    """Whether it is a class of nodes of the graph that `backward()` runs through: written in C++, or based on such a class."""
    found = (attributes.namespace(base).get("next_functions") for base in attributes.mro(kind))
    return any(type(each) is GetSetDescriptorType for each in found)


def of_tensor(tensor: torch.Tensor, shares_memory: bool) -> Iterator[Reference]:
    """`shares_memory`: another object has the same memory. Otherwise that which it is a view of, if it is a view, is known to
    C++ alone, and asking would give it an object."""
    for name in _names_of_references(tensor, shares_memory):
        try:
            value = getattr(tensor, name)
        except Exception as error:
            keep(error)
            continue
        if value is not None:
            yield name, value
    functorch = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(tensor):
        yield "the tensor that a transform has wrapped", functorch.get_unwrapped(tensor)


def hooks_of(tensor: torch.Tensor) -> list[Any]:
    """Dictionaries of hooks, which C++ holds as well."""
    return [getattr(tensor, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]


def _names_of_references(tensor: torch.Tensor, shares_memory: bool) -> Iterator[str]:
    if shares_memory and tensor._is_view():
        yield "_base"
    if tensor.is_leaf:
        yield "grad"
    else:
        yield "grad_fn"
        if tensor.retains_grad:
            yield "grad"


def of_node(node: Any) -> Iterator[Reference]:
    """Other nodes, and the tensor that a gradient is added to."""
    for at, (following, _) in enumerate(node.next_functions):
        if following is not None:
            yield f"next_functions[{at}][0]", following
    variable = getattr(node, "variable", None)
    if issubclass(type(variable), torch.Tensor):
        yield "variable", variable


def saved_by(node: Any) -> Iterator[tuple[str, Any]]:
    """What a node has saved, each as a `SavedTensor`."""
    for name in dir(type(node)):
        if name.startswith("_raw_saved_"):
            try:
                found = getattr(node, name)
            except Exception as error:
                keep(error)
                continue  # freed by a backward pass
            for raw in found if isinstance(found, (tuple, list)) else [found]:
                if type(raw) is torch._C._autograd.SavedTensor:
                    yield "saved_tensors" if name == "_raw_saved_tensors" else name.removeprefix("_raw"), raw


def is_kept_with(function: Any, other: Any) -> bool:
    """Whether two functions look like a pair of hooks: of one object, or written in one function."""
    if type(function) is not type(other):
        return False
    if hasattr(function, "__self__"):
        return bool(function.__self__ is other.__self__)
    if not hasattr(function, "__code__"):
        return False
    written_in = [(each.__code__.co_filename, each.__qualname__.rpartition(".")[0]) for each in (function, other)]
    return written_in[0] == written_in[1]
