"""What is logged of a step, by one name in every tracker.

The names are those of `oomph exporter`: `oomph_memory_allocated_bytes` there is `oomph/memory_allocated_bytes` in a tracker, and
`oomph.memory.allocated` with the unit `By` in OpenTelemetry, which Prometheus receives under the first name again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

PREFIX = "oomph/"

_FIELDS = {
    "memory_allocated_bytes": "allocated",
    "memory_reserved_bytes": "reserved",
    "memory_inactive_split_bytes": "inactive_split",
    "memory_peak_allocated_bytes": "peak",
    "alloc_retries_total": "retries",
    "ooms_total": "ooms",
}
"""Metrics of a device, and the recorder's names for them."""

Values = dict[str, int]


@dataclass
class Reading:
    """Metrics of the steps since the last reading: the highest value of each."""

    kind: str
    """`cuda` or `cpu`."""
    step: int = 0
    devices: dict[int, Values] = field(default_factory=dict)
    """Metrics by device, in the order in which the program has used the devices."""
    process: Values = field(default_factory=dict)
    """Metrics of the process as a whole."""

    def add(self, row: dict[str, Any], driver: dict[str, Any]) -> None:
        """Adds a step: a row of `rankN.steps.jsonl`, and the last sample of the ledger."""
        self.step = row["step"]
        seen = {device["device"]: _seen_by_driver(device) for device in driver.get("devices", [])}
        for counters in row["devices"]:
            values = {name: counters[of] for name, of in _FIELDS.items()}
            _keep_highest(self.devices.setdefault(counters["device"], {}), values | seen.get(counters["device"], {}))
        if "pinned" in row:
            _keep_highest(self.process, {"pinned_host_bytes": row["pinned"]})

    def begin(self) -> Reading:
        """The next reading, which knows the devices already."""
        return Reading(self.kind, self.step, {device: {} for device in self.devices})

    def flat(self) -> dict[str, int]:
        """All metrics by name. The first device has no number in its names, and keeps them when others come into use."""
        found = {PREFIX + name: value for name, value in self.process.items()}
        for at, (device, values) in enumerate(self.devices.items()):
            prefix = PREFIX if at == 0 else f"{PREFIX}device{device}/"
            found |= {prefix + name: value for name, value in values.items()}
        return found


def _keep_highest(highest: Values, values: Values) -> None:
    for name, value in values.items():
        highest[name] = max(value, highest.get(name, value))


def _seen_by_driver(device: dict[str, Any]) -> Values:
    """Memory that PyTorch does not count, where the driver lists processes; by the rule of `oomph exporter` (`split.rs`)."""
    processes, reserved = device.get("processes", []), device["reserved"]
    if not processes:
        return {}
    own = next((process for process in processes if process["pid"] == os.getpid()), None)
    if own is None:
        # In a container the driver numbers processes differently.
        large = [process for process in processes if process["bytes"] >= reserved]
        own = min(large, key=lambda process: int(process["bytes"]), default=None)
    others = sum(process["bytes"] for process in processes if process is not own)
    values = {"device_used_by_others_bytes": others}
    return values if own is None else {**values, "process_non_pytorch_bytes": max(0, own["bytes"] - reserved)}
