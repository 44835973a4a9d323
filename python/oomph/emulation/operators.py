"""PyTorch's operators: which of them have to do with values, and what there is to know of one before it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .dispatch_keys import switched

Schema = Any
"""PyTorch's `FunctionSchema`."""

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

# Registered for every device, and yet not made of other operators; the last tells us of tensors from Python's data.
_KERNELS_FOR_ALL_DEVICES = {"aten::copy_", "aten::lift_fresh"}

# Checks of PyTorch's own, made of other operators.
MACHINERY = {"aten::_linalg_check_errors"}

# They write nothing themselves: `zero_` calls `fill_`.
_WRITE_NOTHING = {"aten::zero_", "aten::set_", "aten::record_stream"}

# What they write does not depend on what was there.
_OVERWRITING = {"aten::fill_", "aten::_foreach_zero_", "aten::_foreach_copy_"}

# They pass a number on as a marked tensor (wrapped_numbers.py) on the device, which PyTorch refuses to give to Python.
_ALONE = {"aten::pow", "aten::isin", "aten::searchsorted", "aten::bucketize"}

_RANDOM = {
    "aten::bernoulli",
    "aten::bernoulli_",
    "aten::binomial",
    "aten::cauchy_",
    "aten::exponential_",
    "aten::geometric_",
    "aten::log_normal_",
    "aten::multinomial",
    "aten::normal",
    "aten::normal_",
    "aten::poisson",
    "aten::random_",
    "aten::randperm",
    "aten::uniform_",
}


def full_name(schema: Schema) -> str:
    return f"{schema.name}.{schema.overload_name}".rstrip(".")


def of_pytorch() -> Iterator[Schema]:
    """The operators of PyTorch that have to do with values: not views, and not what is made of other operators."""
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and _is_registered(schema) and _gives_values(schema):
            yield schema


def of_others(schemas: Iterable[Schema]) -> Iterator[Schema]:
    """Other people's operators that write to their arguments. Of the new tensors that they give nothing is known."""
    for schema in schemas:
        if not schema.name.startswith(("aten::", "prim", "c10d")) and _is_registered(schema) and _writes(schema):
            yield schema


def _is_registered(schema: Schema) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel(full_name(schema)))
    except RuntimeError:
        return False  # an operator of TorchScript's interpreter


def _gives_values(schema: Schema) -> bool:
    if schema.name in _WRITE_NOTHING:
        return False
    if schema.name in _KERNELS_FOR_ALL_DEVICES or schema.name in MACHINERY:
        return True
    new = any(result.alias_info is None for result in schema.returns)
    return _has_kernel(full_name(schema), "CUDA") and (new or _writes(schema))


def _writes(schema: Schema) -> bool:
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)


def _run_alone(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs an operator without seeing those that it calls."""
    with switched(False):
        return run(*args, **kwargs)


class Operator:
    """What the handlers want to know of an operator."""

    __slots__ = (
        "arguments",
        "computable",
        "factory",
        "fresh",
        "handle",
        "name",
        "names",
        "overwritten",
        "pointwise",
        "random",
        "run",
        "tensors",
        "written",
    )

    def __init__(self, schema: Schema) -> None:
        self.name: str = schema.name
        handle = torch._C._dispatch_find_schema_or_throw(schema.name, schema.overload_name)
        run = handle.redispatch_boxed
        self.run: Callable[..., Any] = functools.partial(_run_alone, run) if self.name in _ALONE else run
        """Runs it with the keys of those who come after us."""
        self.handle: Callable[..., Any]
        """The handler, for tensors on the device."""
        self.arguments: list[Any] = schema.arguments
        self.names: list[str] = [argument.name for argument in schema.arguments]
        self.written: tuple[tuple[int, str], ...] = tuple(
            (place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        """Arguments that it writes to: place and name."""
        self.fresh: bool = any(result.alias_info is None for result in schema.returns)
        """Whether the operator returns new tensors."""
        types = [str(argument.type) for argument in schema.arguments]
        self.tensors: tuple[int, ...] = tuple(place for place, kind in enumerate(types) if kind in ("Tensor", "Optional[Tensor]"))
        """Places of single tensors among the arguments."""
        self.factory: bool = "device" in self.names and not any("Tensor" in kind for kind in types)
        tags = torch._C._get_operation_overload(schema.name, schema.overload_name)[2]
        self.random: bool = self.name in _RANDOM
        seeded = torch.Tag.nondeterministic_seeded in tags
        on_cpu = any(_has_kernel(full_name(schema), key) for key in ("CPU", "CompositeExplicitAutograd"))
        defined = self.name.startswith("aten::") and not self.name.startswith("aten::empty")
        self.computable: bool = on_cpu and defined and (self.random or not seeded)
        """Whether the CPU can compute it without anybody noticing: not with the program's own random numbers."""
        self.pointwise: bool = torch.Tag.pointwise in tags
        overwriting = self.name in _OVERWRITING or (self.random and self.name.endswith("_"))
        self.overwritten: frozenset[str] = frozenset(
            name for place, name in self.written if overwriting or schema.arguments[place].is_out
        )

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name."""
        given = {argument.name: argument.default_value for argument in self.arguments if argument.has_default_value()}
        given.update((argument.name, value) for argument, value in zip(self.arguments, args))
        given.update(kwargs)
        return given
