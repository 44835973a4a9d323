"""The dispatch keys that values.py registers for, and switching them: they are on or off per thread.

There are two. With the first, every operator is seen; it is off in the backward pass. There the second is on, with which
only the few operators are seen that read a size from the device: the gradient of `x[mask]` counts the mask again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

KEY: Any = torch._C._parse_dispatch_key("Fake")
BELOW: Any = torch._C._dispatch_keyset_full_after(KEY)
"""The keys of whatever runs an operator after us."""

BACKWARD_NAME = "TESTING_ONLY_GenericMode"
"""A key that PyTorch has for its own tests and registers nothing for."""
BACKWARD_KEY: Any = torch._C._parse_dispatch_key(BACKWARD_NAME)
BACKWARD_BELOW: Any = torch._C._dispatch_keyset_full_after(BACKWARD_KEY)

include: Callable[[Any, bool], None] = torch._C._dispatch_tls_set_dispatch_key_included
_is_included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """The one key on and the other off; `on` is about the first."""
    with _both(on, not on):
        yield


@contextmanager
def own_keys_off() -> Iterator[None]:
    """For work of PyTorch that neither key may see."""
    with _both(False, False):
        yield


@contextmanager
def own_work() -> Iterator[None]:
    """For work with tensors that neither our handlers nor the program's modes may see."""
    with _both(False, False), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def _both(key: bool, backward_key: bool) -> Iterator[None]:
    before = _is_included(KEY), _is_included(BACKWARD_KEY)
    include(KEY, key)
    include(BACKWARD_KEY, backward_key)
    try:
        yield
    finally:
        include(KEY, before[0])
        include(BACKWARD_KEY, before[1])
