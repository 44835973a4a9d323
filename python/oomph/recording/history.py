"""What a recorder needs of a device's history, whichever device it is."""

from __future__ import annotations

from typing import Any, Protocol


class History(Protocol):
    kind: str
    """`cuda` or `cpu`."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def mark(self, text: str) -> None:
        """What later events of this thread say of where the program was."""

    def snapshot(self) -> dict[str, Any]:
        """Everything so far, as `torch.cuda.memory._snapshot()` gives it."""

    def allocations(self) -> dict[int, int]:
        """How many allocations each device has made so far."""

    def counters(self) -> list[dict[str, int]]:
        """The counters of each device, as they stand in `rankN.steps.jsonl`."""
