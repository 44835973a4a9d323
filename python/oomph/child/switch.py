"""The dispatch key that values hang on (values.py), and switching it: it is on or off for each thread by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

KEY: Any = torch._C._parse_dispatch_key("Fake")
BELOW: Any = torch._C._dispatch_keyset_full_after(KEY)
"""The keys of whatever runs an operator after us."""

include: Callable[[Any, bool], None] = torch._C._dispatch_tls_set_dispatch_key_included
_is_included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included


@contextmanager
def switched(on: bool) -> Iterator[None]:
    before = _is_included(KEY)
    include(KEY, on)
    try:
        yield
    finally:
        include(KEY, before)


@contextmanager
def own_work() -> Iterator[None]:
    """For work with tensors that neither the fallback itself nor the program's modes shall see."""
    include(KEY, False)
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            yield
    finally:
        include(KEY, True)
