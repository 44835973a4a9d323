"""What modules and their tensors are called: as the program itself would call them, without the wrappers around them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import Module

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes under which a wrapper keeps what it wraps: data parallelism, `torch.compile`, FSDP, checkpointing."""


def of_class(module: Module) -> str:
    return type(_unwrapped(module)).__name__


def modules(root: Module) -> Iterator[tuple[str, Module]]:
    """Each module below `root`, once, with its dotted name."""
    prefixes = _wrapping(root)
    for name, module in root.named_modules():
        yield _plain(name, prefixes), module


def tensors(root: Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Each parameter and buffer below `root`, once: its kind, its dotted name, itself."""
    prefixes = _wrapping(root)
    for name, parameter in root.named_parameters():
        yield "parameter", _plain(name, prefixes), parameter
    for name, buffer in root.named_buffers():
        yield "buffer", _plain(name, prefixes), buffer


def _wrapping(root: Module) -> list[str]:
    """Where wrappers stand below `root`: their own dotted names, longest first."""
    found = []
    for name, module in root.named_modules():
        inner = _wrapped(module)
        if inner:
            found.append(f"{name}.{inner}" if name else inner)
    return sorted(found, key=len, reverse=True)


def _wrapped(module: Module) -> str | None:
    """The attribute in which a wrapper keeps what it wraps."""
    children = module._modules
    if len(children) != 1:
        return None
    name = next(iter(children))
    is_wrapper = name in _WRAPPERS and (name != "module" or type(module).__module__.startswith("torch."))
    return name if is_wrapper else None


def _unwrapped(module: Module) -> Module:
    name = _wrapped(module)
    inner = module._modules[name] if name else None
    return module if inner is None else _unwrapped(inner)


def _plain(name: str, wrappers: list[str]) -> str:
    """A dotted name without the parts that only wrappers add."""
    for wrapper in wrappers:
        if name == wrapper or name.startswith(wrapper + "."):
            outer, _, _ = wrapper.rpartition(".")
            name = (outer + name[len(wrapper) :]).lstrip(".")
    return name
