"""Sizes as people write and read them, the same as oomph's commands take and print them."""

from __future__ import annotations

import re

from ._native import size

_UNITS = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip


def parse_size(value: object) -> int:
    """Bytes of `"2GiB"`, `"512MB"`, `"1.5 GiB"` or a whole number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", value, re.IGNORECASE | re.ASCII)
        scale = _UNITS.get(found[2].lower()) if found else None
        if found and scale:
            return int(float(found[1]) * scale)
    raise ValueError(f"expected a size such as 2GiB, 512MB or bytes, found {value!r}")


def format_size(bytes: int) -> str:
    """As every output writes it; a change may be negative."""
    return size(bytes) if bytes >= 0 else f"-{size(-bytes)}"
