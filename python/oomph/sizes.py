"""Sizes as people write and read them, the same as oomph's commands take and print them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_PRINTED = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


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


def format_size(size: int) -> str:
    """Three significant digits: `2.59 GiB`, `45.0 MiB`, `512 B`."""
    # On the rounded figure: 1023.999 MiB reads 1.00 GiB, not 1024 MiB.
    for unit, scale in _PRINTED:
        figure = abs(size) / scale
        if figure >= 0.9995:
            digits = 2 if figure < 9.995 else 1 if figure < 99.95 else 0
            return f"{'-' if size < 0 else ''}{figure:.{digits}f} {unit}"
    return f"{size} B"
