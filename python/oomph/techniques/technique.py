"""Base class of the memory-saving techniques, and the words of their outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable


class Technique(ABC):
    """One technique, switched on from outside a program that knows nothing of it."""

    @abstractmethod
    def install(self) -> None:
        """Switches it on, before the program begins."""

    @abstractmethod
    def outcome(self) -> str:
        """One sentence: what was done, or why it could not be."""


def refused(reason: str) -> str:
    return f"not applied: {reason}"


def listed(words: Iterable[str]) -> str:
    """`a, b and c`, each once."""
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} and {last}" if most else last
