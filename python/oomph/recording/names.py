"""What modules and their tensors are called: as the program itself would call them, without the wrappers around them."""

from __future__ import annotations

import time
import weakref

import torch
from torch.nn import Module

from ..interpreter.errors import keep
from ..interpreter.objects import instances

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes under which a wrapper keeps what it wraps: data parallelism, `torch.compile`, FSDP, checkpointing."""
_MAX_SEARCHES = 32
"""Searches through all objects of the process for modules. Each takes milliseconds, or a second in a large process."""
_MAX_SEARCH_SECONDS = 1.0
"""No search starts once searches have taken this long in all."""
_MAX_NAMES = 200_000
"""Bound for programs that create modules all the time."""


class Names:
    """The dotted names of modules and tensors, from the outermost module down: also where the program calls only a part of
    it, as trainers do that have their model's parts called by a method other than `forward`."""

    def __init__(self) -> None:
        self._modules: dict[int, tuple[weakref.ref[Module], str]] = {}
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], str, str]] = {}
        self._searches = 0
        self._search_seconds = 0.0

    def knows(self, module: Module) -> bool:
        known = self._modules.get(id(module))
        return known is not None and known[0]() is module

    def of_module(self, module: Module, caller: Module | None = None) -> str:
        """`GPT.h.0.mlp`: the class of the outermost module, and the way down. `caller`: the module that calls it."""
        if not self.knows(module):
            if caller is None:
                self.learn(self._outermost(module))
            else:
                path = self.of_module(caller)
                # It may have come to its parent only now; or its parent has it in no attribute.
                self._learn_modules(caller, path)
                if not self.knows(module):
                    self._learn_modules(module, f"{path}.{of_class(module)}")
        return self._modules[id(module)][1]

    def of_tensor(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        """Its dotted name and the class of the outermost module."""
        known = self._tensors.get(id(tensor))
        return known[1:] if known is not None and known[0]() is tensor else None

    def search(self) -> None:
        """Learns modules that have not run yet, too."""
        for root in self._search_modules():
            try:
                self.learn(root)
            except Exception as error:
                keep(error)

    def have_half_precision(self) -> bool:
        """Whether any parameter with a name is in half precision."""
        tensors = (reference() for reference, _, _ in list(self._tensors.values()))
        parameters = (tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter))
        return any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in parameters)

    def learn(self, root: Module) -> list[tuple[str, str, torch.Tensor]]:
        """Everything below `root`; gives its tensors: kind, dotted name, itself."""
        if len(self._modules) + len(self._tensors) > _MAX_NAMES:
            self._modules.clear()
            self._tensors.clear()
        model = of_class(root)
        wrappers = self._learn_modules(root, model)
        found = []
        for kind, tensors in (("parameter", root.named_parameters()), ("buffer", root.named_buffers())):
            for name, tensor in tensors:
                plain = _plain(name, wrappers)
                self._tensors[id(tensor)] = (weakref.ref(tensor), plain, model)
                found.append((kind, plain, tensor))
        return found

    def _learn_modules(self, root: Module, path: str) -> list[str]:
        """Gives the wrappers below `root`."""
        wrappers = _wrapping(root)
        for name, module in root.named_modules():
            plain = _plain(name, wrappers)
            self._modules[id(module)] = (weakref.ref(module), f"{path}.{plain}" if plain else path)
        return wrappers

    def _outermost(self, module: Module) -> Module:
        """The module that has this one, at whatever depth, and is in no other."""
        for root in self._search_modules():
            if any(inner is module for inner in root.modules()):
                return root
        return module

    def _search_modules(self) -> list[Module]:
        """The outermost modules of the process; none once searches have cost enough."""
        if self._searches >= _MAX_SEARCHES or self._search_seconds >= _MAX_SEARCH_SECONDS:
            return []
        self._searches += 1
        began = time.perf_counter()
        try:
            return outermost_modules()
        finally:
            self._search_seconds += time.perf_counter() - began


def outermost_modules() -> list[Module]:
    """Modules that no other module has: also those that have not run yet."""
    modules = [module for module in instances(Module) if "_modules" in module.__dict__]
    inner = {id(child) for module in modules for child in module.__dict__["_modules"].values()}
    return [module for module in modules if id(module) not in inner]


def of_class(module: Module) -> str:
    return type(_unwrapped(module)).__name__


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
