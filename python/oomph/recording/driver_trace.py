"""What libraries have taken from the CUDA driver (`oomph run --trace-driver`), as crates/tracer counts it."""

from __future__ import annotations

import ctypes
import json
from typing import Any

_DRIVER = b"libcuda.so.1"


class DriverTrace:
    def __init__(self, library: str) -> None:
        """Before torch is imported: who has found the driver's functions by then is not counted."""
        self._library = ctypes.CDLL(library)
        install, self._read = self._library.oomph_tracer_install, self._library.oomph_tracer_read
        install.argtypes, install.restype = [ctypes.c_char_p], ctypes.c_size_t
        self._read.argtypes, self._read.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_size_t
        self.is_on = bool(install(_DRIVER))

    def read(self) -> dict[str, Any]:
        """Entries with device, kind, library and bytes, and how many calls overlapped with others."""
        capacity = 1 << 16
        while True:
            text = ctypes.create_string_buffer(capacity)
            length = self._read(text, capacity)
            if length <= capacity:
                found: dict[str, Any] = json.loads(text.raw[:length])
                return found
            capacity = 2 * length
