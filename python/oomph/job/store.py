"""The key-value store through which the ranks of a group of NCCL find each other, if not all of them run.

The first rank of a communicator writes its ID into the store, and the others wait for it. If the first rank does not run, the
ID is derived from its key, so that the ranks that do run agree on it. For each ID, the emulator gets a list of the ranks that
run.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .plan import JobPlan, Note

_Store: Any = getattr(dist, "Store", object)
_ID_BYTES = 128
"""Length of `ncclUniqueId`."""
_NAME_BYTES = 16
"""Bytes of an ID that the emulator fills, and after which it names the folder of a communicator."""


class GroupStore(_Store):  # type: ignore[misc]
    """The store of one process group: that of PyTorch, except for the IDs of communicators."""

    def __init__(self, store: Any, ranks: Sequence[int], plan: JobPlan, note: Note, name: str) -> None:
        super().__init__()
        self._store = store
        self._ranks = list(ranks)
        self._plan = plan
        self._note = note
        self._name = name

    def set(self, key: str, value: Any) -> None:
        value = bytes(value) if not isinstance(value, str) else value.encode()
        if len(value) == _ID_BYTES:
            self._announce(key, value)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        members = self._members(key)
        if members is not None and not self._plan.runs(members[0]):
            value = hashlib.sha256(f"{self._name}/{self._ranks}/{key}".encode()).digest()[:_NAME_BYTES].ljust(_ID_BYTES, b"\0")
            self._announce(key, value)
            return value
        return bytes(self._store.get(key))

    def _members(self, key: str) -> list[int] | None:
        """The ranks of the communicator whose ID this key has: a number for all ranks of the group, `0:3` for two of them."""
        if key.isdigit():
            return self._ranks
        first, separator, second = key.partition(":")
        if separator and first.isdigit() and second.isdigit():
            pair = sorted((int(first), int(second)))
            if pair[1] < len(self._ranks):
                return [self._ranks[index] for index in pair]
        return None

    def _announce(self, key: str, value: bytes) -> None:
        """Tells the emulator which ranks of a communicator run, before it opens the communicator."""
        members = self._members(key)
        if members is None:
            return
        name = value[:_NAME_BYTES].hex()
        folder = os.path.join(self._plan.folder, name)
        os.makedirs(folder, exist_ok=True)
        stand_ins = self._plan.stand_ins(members)
        path = os.path.join(folder, "stand-ins")
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(struct.pack(f"<{len(stand_ins)}I", *stand_ins))
        os.replace(f"{path}.{os.getpid()}", path)
        self._note("communicator", f"{name} {' '.join(map(str, members))}")

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        if timeout is None:
            self._store.wait(keys)
        else:
            self._store.wait(keys, timeout)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return bytes(self._store.compare_set(key, expected, desired))

    def delete_key(self, key: str) -> bool:
        return bool(self._store.delete_key(key))

    def num_keys(self) -> int:
        return int(self._store.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    @property
    def timeout(self) -> Any:
        return self._store.timeout

    def clone(self) -> GroupStore:
        return self
