"""Messages of the recorder on standard error, which the program may have closed."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    try:
        if sys.stderr is not None:
            print(f"oomph: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # closed by the program


def words(error: BaseException) -> str:
    """An exception in one line; `str()` of it may fail or give text that cannot be encoded."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text.encode("utf-8", "replace").decode()
