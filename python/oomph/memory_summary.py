"""What `pytest --oomph` has measured, and its summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from .allocations import site
from .sizes import format_size


@dataclass
class Left:
    """What a test leaves behind of one line."""

    line: str
    size: int
    device: int
    address: int
    """Of its largest block."""

    def is_in(self, snapshot: dict[str, Any]) -> bool:
        """Whether that block is still there."""
        return any(
            block["address"] == self.address and str(site(block.get("frames", []))) == self.line
            for segment in snapshot["segments"]
            if segment["device"] == self.device
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        )


@dataclass
class TestMemory:
    """Memory of one test on one device, in bytes."""

    __test__ = False  # not a test itself

    test: str
    device: str
    peak: int
    """The most that the test held above what was allocated when it began, without its fixtures."""
    fixtures: int
    """What its own fixtures held when it began."""
    line: str
    """The line with most of the peak; empty for tests that are not listed."""
    left: list[Left]

    @property
    def needed(self) -> int:
        return self.peak + self.fixtures


@dataclass
class SharedFixture:
    """A fixture of a wider scope than one test."""

    name: str
    device: str
    size: int


@dataclass
class SessionMemory:
    """All tests of a process, or of all workers."""

    tests: list[TestMemory] = field(default_factory=list)
    fixtures: list[SharedFixture] = field(default_factory=list)
    more_at_end: dict[str, int] = field(default_factory=dict)
    """By device: bytes at the end of the session above its beginning."""
    holders: dict[str, str] = field(default_factory=dict)
    """Who holds what a line has left behind."""
    problem: str = ""
    """Why nothing is measured any more."""

    def lowest_of(self, top: int) -> int:
        """What a test has to exceed to be one of the `top`."""
        needed = sorted((test.needed for test in self.tests), reverse=True)
        return needed[top - 1] if 0 < top <= len(needed) else 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, other: dict[str, Any]) -> None:
        """Adds those of a worker."""
        for test in other["tests"]:
            self.tests.append(TestMemory(**{**test, "left": [Left(**left) for left in test["left"]]}))
        self.fixtures += [SharedFixture(**fixture) for fixture in other["fixtures"]]
        for device, size in other["more_at_end"].items():
            self.more_at_end[device] = self.more_at_end.get(device, 0) + size
        self.holders |= other["holders"]
        self.problem = self.problem or other["problem"]


def text(memory: SessionMemory, top: int) -> Iterator[str]:
    """Lines of the summary."""
    if memory.problem:
        yield f"memory is not measured: {memory.problem}"
    if not memory.tests and not memory.fixtures:
        if not memory.problem:
            yield "no test has allocated a tensor"
        return
    devices = sorted({test.device for test in memory.tests} | {fixture.device for fixture in memory.fixtures})
    for device in devices:
        yield from _device(memory, device, top)


def _device(memory: SessionMemory, device: str, top: int) -> Iterator[str]:
    tests = sorted((test for test in memory.tests if test.device == device), key=lambda test: -test.needed)
    yield f"on {device}"
    if tests:
        yield f"{'peak':>10}  {'fixtures':>10}  test"
    for test in tests[:top]:
        yield f"{format_size(test.peak):>10}  {_or_dash(test.fixtures):>10}  {test.test}"
        if test.line:
            yield f"{'':24}{test.line}"
    if len(tests) > top:
        yield f"{len(tests) - top:>10} more tests need {format_size(tests[top].needed)} or less each"
    yield from _shared([fixture for fixture in memory.fixtures if fixture.device == device])
    yield from _leaks([test for test in memory.tests if test.device == device], memory.holders)
    more = memory.more_at_end.get(device, 0)
    if more:
        yield f"at the end, {format_size(more)} more is allocated than at the beginning"


def _shared(fixtures: Iterable[SharedFixture]) -> Iterator[str]:
    largest: dict[str, int] = {}
    for fixture in fixtures:
        largest[fixture.name] = max(fixture.size, largest.get(fixture.name, 0))
    if largest:
        yield "fixtures that tests share"
    for name, size in sorted(largest.items(), key=lambda of: -of[1]):
        yield f"{format_size(size):>10}  {name}"


def _leaks(tests: list[TestMemory], holders: dict[str, str]) -> Iterator[str]:
    leaks: dict[str, list[tuple[TestMemory, Left]]] = {}
    for each in tests:
        for left in each.left:
            leaks.setdefault(left.line, []).append((each, left))
    if leaks:
        yield "left behind by tests"
    for line, found in sorted(leaks.items(), key=lambda of: -_size(of[1])):
        others = "" if len(found) == 1 else f" and {len(found) - 1} more"
        yield f"{format_size(_size(found)):>10}  {line}"
        yield f"{'':12}by {found[0][0].test}{others}"
        if line in holders:
            yield f"{'':12}held by {holders[line]}"


def _size(found: list[tuple[TestMemory, Left]]) -> int:
    return sum(left.size for _, left in found)


def _or_dash(size: int) -> str:
    return format_size(size) if size else "-"
