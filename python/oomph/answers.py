"""What oomph answers: the JSON of a command with names and types, and its text.

Every class keeps the JSON that it was made from in `json`, with all fields, also those that have no name here.
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from oomph import _native
from oomph.notebook import html

Json = dict[str, Any]
Ask = Callable[[bool], tuple[str, list[str]]]
"""A command of the Rust half: returns its JSON (`True`) or its text, and its notes."""


@dataclass(frozen=True, slots=True)
class Site:
    """A line of code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or worth knowing: what, how much, where, and what to do about it. Sizes are bytes."""

    kind: str
    severity: str
    summary: str
    bytes: int
    bytes_per_step: int | None
    count: int
    site: Site | None
    module: str | None
    """The module that its blocks lie in, where a recorder noted it."""
    held_by: str | None
    """The reference path from its holder, where a recorder noted the references: `__main__.history[…].grad_fn…_saved_self`."""
    holder: Json | None
    """Its holder: `path`, `class`, `kind`, `retained`, `stored_at`, …"""
    cause: str | None
    details: tuple[str, ...]
    evidence: Json
    fix: str
    caveats: tuple[str, ...]
    file: str
    """The snapshot that it was found in."""
    device: int
    json: Json = field(repr=False)


@dataclass(frozen=True, slots=True)
class Group:
    """Live blocks that have something in common: their line, unless another grouping was asked for."""

    bytes: int
    count: int
    site: Site | None
    json: Json = field(repr=False)


@dataclass(frozen=True, slots=True)
class Level:
    """A counter over the history of a device, in bytes."""

    peak: int
    peak_event: int
    end: int


@dataclass(frozen=True, slots=True)
class Device:
    """One device of one snapshot."""

    file: str
    device: int
    kind: str
    """`gpu` or `cpu`."""
    events: int
    is_complete: bool
    """Whether the history begins with the first allocation."""
    steps: int
    allocated: Level
    reserved: Level
    categories_at_peak: dict[str, int]
    live: tuple[Group, ...]
    """What was live at the moment that was asked about, the largest first."""
    findings: tuple[Finding, ...]
    caveats: tuple[str, ...]
    json: Json = field(repr=False)


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest point of the device that allocated most; all zero if nothing was recorded."""

    allocated: int
    reserved: int
    """The most that was reserved, which may be at another event."""
    event: int
    file: str
    device: int
    categories: dict[str, int]
    groups: tuple[Group, ...]
    """The lines that hold it, the largest first."""


class Answer:
    """What a command says: `json` for programs, `str()` for people, and HTML in a notebook."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        text, notes = ask(True)
        self.json: Json = json.loads(text)
        for note in notes:
            warnings.warn(note.removeprefix("note: "), stacklevel=3)

    @cached_property
    def _text(self) -> str:
        text, _ = self._ask(False)
        return text.removesuffix("\n")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<oomph {type(self).__name__}; print() shows it>"

    def _repr_html_(self) -> str:
        return html.text(str(self))


class Report(Answer):
    """`oomph report`."""

    def __init__(self, ask: Ask, timelines: Callable[[], list[Json]] = list) -> None:
        """`timelines`: the memory timeline of each device."""
        super().__init__(ask)
        self._timelines = timelines

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Every device of every snapshot."""
        return _devices(self.json)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all devices, in the order of the report."""
        return tuple(finding for device in self.devices for finding in device.findings)

    def _repr_html_(self) -> str:
        return html.report(self, self._timelines())


class Simulation(Answer):
    """`oomph simulate`: a recorded run under other settings or on another card."""

    @property
    def fits(self) -> bool:
        """Whether no allocation fails."""
        return bool(self.json["fits"])

    @property
    def settings(self) -> str:
        """As in PYTORCH_CUDA_ALLOC_CONF."""
        return str(self.json["settings"])

    @property
    def export(self) -> str:
        """The line for a shell that sets them."""
        return str(self.json["export"])

    @property
    def peak_allocated(self) -> int:
        return int(self.json["peak_allocated"])

    @property
    def peak_reserved(self) -> int:
        return int(self.json["peak_reserved"])

    @property
    def smallest_gpu(self) -> int | None:
        """The least memory of a GPU that works, where that was requested or the GPU was too small."""
        smallest = self.json["smallest_gpu"]
        return None if smallest is None else int(smallest)

    @property
    def oom(self) -> Json | None:
        """The request that fails: `event`, `site`, `requested`, `cause`, …"""
        oom: Json | None = self.json["oom"]
        return oom

    @property
    def caveats(self) -> tuple[str, ...]:
        return tuple(self.json["caveats"])


class Search(Answer):
    """`oomph simulate --search`: the settings that were tried, the best first."""

    @property
    def best(self) -> Json | None:
        """`settings`, `export` and `peak_reserved` of the best that fits."""
        best: Json | None = self.json["best"]
        return best

    @property
    def trials(self) -> list[Json]:
        """Each with the fields of a simulation."""
        trials: list[Json] = self.json["trials"]
        return trials


class Verification(Answer):
    """`oomph simulate --verify`: the model against the record."""

    @property
    def comparisons(self) -> list[Json]:
        """One for each device of each snapshot: `events`, `identical`, `first_difference`, …"""
        return [each["verify"] for each in self.json.get("inputs", [self.json])]

    @property
    def is_identical(self) -> bool:
        """Whether the model decides as PyTorch did, at every event."""
        return all(each["first_difference"] is None for each in self.comparisons)


class Check(Answer):
    """`oomph check`: a run against a budget."""

    @property
    def ok(self) -> bool:
        """Whether every limit is kept."""
        return bool(self.json["ok"])

    @property
    def verdict(self) -> str:
        """`kept`, `broken` or `unmeasured`."""
        return str(self.json["verdict"])

    @property
    def broken(self) -> tuple[str, ...]:
        """A sentence for each limit that is broken."""
        return tuple(message for device in self.json["devices"] for message in device["broken"])


class Fleet(Answer):
    """`oomph fleet`: what the ranks of a job say together."""

    @property
    def dimensions(self) -> tuple[Json, ...]:
        """Dimensions that explain the peaks, the most important first: `name`, `explained`, `values`."""
        return tuple(self.json["dimensions"])

    @property
    def deviations(self) -> tuple[Json, ...]:
        """Ranks and nodes that are out of line with ranks at the same coordinates."""
        return tuple(self.json["deviations"])

    @property
    def failure(self) -> Json | None:
        """Who ran out of memory, in order of time."""
        found: Json | None = self.json["failure"]
        return found

    @property
    def findings(self) -> tuple[Json, ...]:
        """Findings, each with the ranks that have it."""
        return tuple(self.json["findings"])

    @property
    def broken(self) -> tuple[Json, ...]:
        """Files that cannot be read."""
        return tuple(self.json["broken"])

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have no file."""
        return tuple(self.json["missing"])


class Prediction:
    """`oomph predict`: what a program needs on a card. Sizes are bytes."""

    def __init__(self, json: Json) -> None:
        self.json = json

    @property
    def fits(self) -> bool:
        """Whether no allocation failed."""
        return bool(self.json["fits"])

    @property
    def is_exact(self) -> bool:
        """Whether nothing in the answer is an estimate; `reasons` says why otherwise."""
        return bool(self.json["confidence"] == "exact")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is an estimate."""
        return tuple(self.json["reasons"])

    @property
    def peak_allocated(self) -> int:
        """Of the device that needs most, as the others."""
        return int(self.json["peak_allocated"])

    @property
    def peak_reserved(self) -> int:
        return int(self.json["peak_reserved"])

    @property
    def total(self) -> int:
        """What the process takes on the card: reserved memory and the CUDA context."""
        return int(self.json["total"])

    @property
    def verdict(self) -> str:
        """`fits`, `tight` (less than 3% to spare), `fills_up` (memory grows from step to step) or `does_not_fit`."""
        return str(self.json["verdict"])

    @property
    def full_at_step(self) -> int | None:
        """The step in which a program runs out of memory that grows from step to step."""
        return self.json.get("full_at_step")

    @property
    def headroom(self) -> int:
        """What is left of the GPU's memory; negative if the program does not fit."""
        return int(self.json["headroom"])

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """As of `oomph report`, with their findings."""
        return _devices(self.json["report"])

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for device in self.devices for finding in device.findings)

    def __str__(self) -> str:
        card, total = self.json["gpu"], _native.size(self.total)
        certainty = "exact" if self.is_exact else "estimate"
        if self.fits:
            return f"fits on {card['name']}: {total} of {_native.size(card['memory'])} ({certainty})"
        if self.full_at_step is not None:
            return f"fits on {card['name']} until step {self.full_at_step:,}, when its memory is full ({certainty})"
        return f"does not fit on {card['name']}, {_native.size(card['memory'])} ({certainty})"

    def __repr__(self) -> str:
        return f"<oomph Prediction: {self}>"


class Difference(Answer):
    """`oomph diff`: what has changed from one run to another."""

    @property
    def pairs(self) -> list[Json]:
        """One for each device: `allocated`, `reserved`, `sites`, `findings`, …, with `before` and `after`."""
        pairs: list[Json] = self.json["pairs"]
        return pairs


class Holders(Answer):
    """`oomph.holders()`: who keeps a tensor alive, or who holds how much."""

    @property
    def held_by(self) -> tuple[str, ...]:
        """The ways to the tensor; without one, who holds most."""
        if "held_by" in self.json:
            return tuple(self.json["held_by"])
        return tuple(holder["held_by"] for holder in self.json["holders"])

    @property
    def holder(self) -> Json | None:
        """A description of what would have to go for the memory to be free: `path`, `class`, `kind`, `retained`, …"""
        if "holder" in self.json:
            holder: Json | None = self.json["holder"]
            return holder
        return next(iter(self.json["holders"]), None)

    def __repr__(self) -> str:
        # At a prompt the answer is what is wanted.
        return str(self)


def peak(devices: tuple[Device, ...]) -> Peak:
    """The highest of some devices. What they hold live is at their peaks."""
    if not devices:
        return Peak(0, 0, 0, "", 0, {}, ())
    of = max(devices, key=lambda device: device.allocated.peak)
    allocated = of.allocated
    return Peak(allocated.peak, of.reserved.peak, allocated.peak_event, of.file, of.device, of.categories_at_peak, of.live)


def _devices(report: Json) -> tuple[Device, ...]:
    return tuple(_device(each["file"], device) for each in report["inputs"] for device in each["devices"])


def _device(file: str, of: Json) -> Device:
    return Device(
        file=file,
        device=of["device"],
        kind=of["kind"],
        events=of["events"],
        is_complete=of["history"] == "complete",
        steps=of["steps"]["count"],
        allocated=_level(of["allocated"]),
        reserved=_level(of["reserved"]),
        categories_at_peak=of["categories_at_peak"],
        live=tuple(_group(group) for group in of["live"]["groups"]),
        findings=tuple(_finding(file, of["device"], finding) for finding in of["findings"]),
        caveats=tuple(of["caveats"]),
        json=of,
    )


def _level(of: Json) -> Level:
    return Level(of["peak"], of["peak_event"], of["end"])


def _site(of: Json | None) -> Site | None:
    return None if of is None else Site(of["file"], of["line"], of["function"])


def _group(of: Json) -> Group:
    return Group(of["bytes"], of["count"], _site(of.get("site")), json=of)


def _finding(file: str, device: int, of: Json) -> Finding:
    return Finding(
        kind=of["kind"],
        severity=of["severity"],
        summary=of["summary"],
        bytes=of["bytes"],
        bytes_per_step=of.get("bytes_per_step"),
        count=of["count"],
        site=_site(of.get("site")),
        module=of.get("module"),
        held_by=of.get("held_by"),
        holder=of.get("holder"),
        cause=of.get("cause"),
        details=tuple(of["details"]),
        evidence=of["evidence"],
        fix=of["fix"],
        caveats=tuple(of["caveats"]),
        file=file,
        device=device,
        json=of,
    )
