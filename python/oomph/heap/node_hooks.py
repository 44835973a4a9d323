"""Hooks on nodes of the graph: dictionaries that only C++ refers to, read where they lie.

The places are found and tried on nodes of our own; where they do not fit, such a dictionary is held from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .memory import WORD, word
from .trial import Trial

_NODE_OF_OBJECT = 2 * WORD
_DICTIONARY_OF_HOOK = WORD
_MAX_WORDS = 40
_MAX_HOOKS = 64


def of(node: Any) -> Iterator[int]:
    """Identities of what may be dictionaries of hooks. Not of a node that is written in Python, which the collector sees."""
    if not issubclass(type(node), torch._C._FunctionBase):
        for offset in offsets():
            yield from _listed(word(id(node) + _NODE_OF_OBJECT) + offset)


def _listed(vector: int) -> Iterator[int]:
    begin, end = word(vector), word(vector + WORD)
    if begin and 0 < end - begin <= _MAX_HOOKS * WORD:
        for at in range(begin, end, WORD):
            yield word(word(at) + _DICTIONARY_OF_HOOK)


def offsets() -> list[int]:
    """Of the vectors with hooks that run before a node, after it, and on the gradient of a tensor."""
    return _tried.result() or []


def _find() -> list[int]:
    found: list[int] = []
    given = torch.ones(3, requires_grad=True, device="cpu")
    for kind in ("register_prehook", "register_hook", "of tensor"):
        results: list[Any] = [given * 2, given * 2]
        nodes = [result.grad_fn for result in results]
        hooked = results[0] if kind == "of tensor" else nodes[0]
        handle = hooked.register_hook(print) if kind == "of tensor" else getattr(hooked, kind)(print)
        dictionary = handle.hooks_dict_ref()
        with_hooks, without = (word(id(node) + _NODE_OF_OBJECT) for node in nodes)
        found += [
            offset
            for offset in range(WORD, _MAX_WORDS * WORD, WORD)
            if word(without + offset) == word(without + offset + WORD) == 0
            and word(with_hooks + offset + WORD) - word(with_hooks + offset) == WORD
            and list(_listed(with_hooks + offset)) == [id(dictionary)]
        ]
    return found


_tried = Trial(_find)
