"""OpenTelemetry: metrics through the program's meter provider, findings as events of a span."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from .metrics import Reading
from .tracker import GrowingMemory, MakeReport

_SCOPE = "oomph"
_PLACEHOLDERS = ("_ProxyMeterProvider", "NoOpMeterProvider")
"""What the API has where no provider is set."""


class Meter:
    name = "OpenTelemetry"

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self._instruments: dict[str, Any] = {}
        self._totals: dict[tuple[str, str], int] = {}

    def log(self, reading: Reading) -> None:
        rank = {"rank": os.environ.get("RANK", "0")}
        self._add("steps_total", reading.step, rank)
        for name, value in reading.process.items():
            self._set(name, value, rank)
        for device, values in reading.devices.items():
            for name, value in values.items():
                self._set(name, value, {**rank, "device": "cpu" if reading.kind == "cpu" else str(device)})

    def leak(self, leak: GrowingMemory) -> None:
        about = {"message": leak.message, "step": leak.step, "bytes_per_step": leak.bytes_per_step, "device": str(leak.device)}
        with _span("oomph.leak") as span:
            span.set_attributes({f"oomph.{name}": value for name, value in about.items()})

    def report(self, step: int, report: MakeReport) -> None:
        findings = report().findings
        with _span("oomph.report") as span:
            span.set_attributes({"oomph.step": step, "oomph.findings": len(findings)})
            for finding in findings:
                span.add_event("oomph.finding", {f"oomph.{name}": value for name, value in finding.items()})

    def _set(self, name: str, value: int, attributes: dict[str, str]) -> None:
        if name.endswith("_total"):
            self._add(name, value, attributes)
        else:
            self._instrument(name).set(value, attributes)

    def _add(self, name: str, total: int, attributes: dict[str, str]) -> None:
        key = name, attributes.get("device", "")
        # A program that turns out to have begun later counts its steps from 1 again.
        added, self._totals[key] = max(0, total - self._totals.get(key, 0)), total
        self._instrument(name).add(added, attributes)

    def _instrument(self, name: str) -> Any:
        if name not in self._instruments:
            dotted = "oomph." + name.removesuffix("_bytes").removesuffix("_total").replace("_", ".", 1)
            if name.endswith("_total"):
                self._instruments[name] = self._meter.create_counter(dotted)
            else:
                self._instruments[name] = self._meter.create_gauge(dotted, unit="By")
        return self._instruments[name]


def _span(name: str) -> Any:
    return import_module("opentelemetry.trace").get_tracer(_SCOPE).start_as_current_span(name)


def meter_of(provider: Any) -> Meter:
    return Meter(provider.get_meter(_SCOPE))


def of_provider_in_use() -> Meter | None:
    api = sys.modules.get("opentelemetry.metrics")
    provider = None if api is None else api.get_meter_provider()
    return None if provider is None or type(provider).__name__ in _PLACEHOLDERS else meter_of(provider)
