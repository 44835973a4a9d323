"""What the recorder has to say, on standard error, whatever has become of that."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    try:
        if sys.stderr is not None:
            print(f"oomph: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # closed: nobody listens


def words(error: BaseException) -> str:
    """An exception in a line; its own text may fail, or be no text that can be written."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text.encode("utf-8", "replace").decode()
