"""`pytest --oomph`: measures what each test needs, and what it leaves behind.

One gauge measures all tests of a process. It starts with the first test for which torch is there: a test run that never imports
torch does not import it because of us. Fixtures of a wider scope than one test are counted by themselves, in whichever test they
begin and end.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from .memory_summary import Left, SessionMemory, SharedFixture, TestMemory, text

if TYPE_CHECKING:
    from .allocations import Allocation
    from .gauge import Gauge

Bytes = Counter[int]
"""By device."""

_MAX_LEFT = 3
"""Lines that are kept of what one test leaves behind, and leaks whose holders are looked for."""
_MIN_LEFT_FOR_HOLDERS = 1 << 20
"""Bytes left behind that are worth a walk through all objects of the process, which takes seconds."""


@dataclass
class _Running:
    """The test that runs."""

    before: Bytes
    shared_before: Bytes
    before_call: Bytes = field(default_factory=Counter)
    fixtures: Bytes = field(default_factory=Counter)
    """What its own fixtures held when it was called."""
    made_before_call: Bytes = field(default_factory=Counter)
    peak: Bytes = field(default_factory=Counter)
    lines: dict[int, str] = field(default_factory=dict)
    """The line with most of the peak."""
    has_failed: bool = False


class MemoryOfTests:
    """The plugin that `--oomph` adds. Whatever goes wrong here ends the measurement, not the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._device: str = config.getini("oomph_device")
        self._top: int = config.getoption("--oomph-top")
        self._gauge: Gauge | None = None
        self._memory = SessionMemory()
        self._began: Bytes = Counter()
        self._shared: Counter[tuple[int, int]] = Counter()
        """What each fixture of a wider scope holds on a device; by its identity, as the same name may stand for several."""
        self._test: _Running | None = None
        self._has_garbage = False
        """Whether the test before has ended with an exception."""

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None]:
        self._safely(self._begin_test)
        yield
        self._safely(lambda: self._end_test(item.nodeid))
        self._test = None

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        self._safely(self._begin_call)
        yield
        self._safely(lambda: self._end_call(item))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None]:
        if self._test is not None and call.excinfo is not None:
            self._test.has_failed = self._has_garbage = True
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None]:
        if self._gauge is None or fixturedef.scope == "function":
            yield
            return
        before = self._own()
        yield
        self._safely(lambda: self._begin_shared(fixturedef, before))

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        for key in [key for key in self._shared if key[0] == id(fixturedef)]:
            del self._shared[key]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._safely(self._finish)
        # A worker of pytest-xdist, whose results the controller prints.
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["oomph"] = self._memory.as_json()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        sent = getattr(node, "workeroutput", {}).get("oomph")
        if sent is not None:
            self._memory.add(sent)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("memory of tests (oomph)")
        for line in text(self._memory, self._top):
            terminalreporter.line(line)

    def _safely(self, do: Callable[[], None]) -> None:
        if self._memory.problem:
            return
        try:
            do()
        except Exception as error:
            self._memory.problem = f"{type(error).__name__}: {error}"
            self._gauge = None

    def _begin_test(self) -> None:
        if self._gauge is None:
            if "torch" not in sys.modules:
                return
            from .gauge import gauge_for

            self._gauge = gauge_for(self._device)
            if self._gauge is None:
                self._memory.problem = "oomph_device = cuda, but no GPU is available"
                return
            self._gauge.start()
            self._began = self._allocated()
        if self._has_garbage:
            # pytest keeps the exception of a test to the next call of one: its tensors must not go in the middle of that.
            self._has_garbage = False
            for name in ("last_type", "last_value", "last_traceback", "last_exc"):
                vars(sys).pop(name, None)
            gc.collect()
        self._gauge.restart()
        self._test = _Running(self._allocated(), self._held_by_shared())

    def _begin_call(self) -> None:
        if self._gauge is not None and self._test is not None:
            test = self._test
            test.before_call = self._allocated()
            shared = _less(self._held_by_shared(), test.shared_before)
            test.fixtures = _less(_less(test.before_call, test.before), shared)
            self._test.made_before_call = Counter(self._gauge.allocations())
            self._gauge.reset_peak()

    def _end_call(self, item: pytest.Item) -> None:
        if self._gauge is None or self._test is None:
            return
        test = self._test
        test.peak = _less(Counter(self._gauge.peak()), test.before_call)
        used = {device: peak for device, peak in test.peak.items() if peak > 0}
        # Of a test that is repeated, the last run counts.
        others = [each for each in item.user_properties if not each[0].startswith("oomph_peak_bytes")]
        ours = [(f"oomph_peak_bytes_{_slug(self._gauge.name(device))}", peak) for device, peak in used.items()]
        item.user_properties[:] = [*others, *ours]
        if max(used.values(), default=0) > self._memory.lowest_of(self._top):
            made = _less(Counter(self._gauge.allocations()), test.made_before_call)
            for device, blocks in self._blocks(made, lambda block: block.at_peak).items():
                test.lines[device] = _most(blocks)

    def _end_test(self, test_id: str) -> None:
        if self._gauge is None or self._test is None:
            return
        test, made = self._test, Counter(self._gauge.allocations())
        if not any(made.values()):
            return
        gc.collect()
        shared = _less(self._held_by_shared(), test.shared_before)
        left = _less(_less(self._allocated(), test.before), shared)
        # pytest keeps the frames of a test that has failed, and so its tensors.
        has_left = not test.has_failed and any(size > 0 for size in left.values())
        stays = self._blocks(made, lambda block: block.freed_after is None) if has_left else {}
        for device in sorted({*test.peak, *stays}):
            if test.peak[device] <= 0 and device not in stays:
                continue
            peak, fixtures = max(0, test.peak[device]), max(0, test.fixtures[device])
            lines = _left(stays.get(device, []), left[device])
            name = self._gauge.name(device)
            self._memory.tests.append(TestMemory(test_id, name, peak, fixtures, test.lines.get(device, ""), lines))

    def _begin_shared(self, fixturedef: Any, before: Bytes) -> None:
        if self._gauge is None:
            return
        for device, size in _less(self._own(), before).items():
            if size > 0:
                self._shared[id(fixturedef), device] = size
                name = f"{fixturedef.argname} ({fixturedef.scope})"
                self._memory.fixtures.append(SharedFixture(name, self._gauge.name(device), size))

    def _finish(self) -> None:
        if self._gauge is None:
            return
        gc.collect()
        more = _less(_less(self._allocated(), self._began), self._held_by_shared())
        self._memory.more_at_end = {self._gauge.name(device): size for device, size in more.items() if size > 0}
        if max(more.values(), default=0) >= _MIN_LEFT_FOR_HOLDERS:
            self._find_holders()
        self._gauge.stop()

    def _find_holders(self) -> None:
        """Who holds the largest of what was left behind, as far as it is still there."""
        assert self._gauge is not None
        from .holders import holders_of

        snapshot = self._gauge.snapshot()
        kind = "cpu" if self._gauge.name(0) == "the CPU" else "cuda"
        largest = sorted((left for test in self._memory.tests for left in test.left), key=lambda left: -left.size)
        lines: dict[str, Left] = {}
        for left in largest:
            if len(lines) < _MAX_LEFT and left.is_in(snapshot):
                lines.setdefault(left.line, left)
        found = holders_of([(kind, left.device, left.address) for left in lines.values()])
        self._memory.holders = {line: held_by for line, held_by in zip(lines, found) if held_by}

    def _allocated(self) -> Bytes:
        return Counter() if self._gauge is None else Counter(self._gauge.allocated())

    def _held_by_shared(self) -> Bytes:
        held: Bytes = Counter()
        for (_, device), size in self._shared.items():
            held[device] += size
        return held

    def _own(self) -> Bytes:
        """What is allocated without fixtures of a wider scope."""
        return _less(self._allocated(), self._held_by_shared())

    def _blocks(self, made: Bytes, of: Callable[[Allocation], bool]) -> dict[int, list[Allocation]]:
        """Blocks of the last allocations, by device."""
        assert self._gauge is not None
        from .allocations import allocations

        found: dict[int, list[Allocation]] = {}
        for block in allocations(self._gauge.snapshot(), dict(made)):
            if of(block):
                found.setdefault(block.device, []).append(block)
        return found


def _less(a: Bytes, b: Bytes) -> Bytes:
    """The difference, which may be negative."""
    result = Counter(a)
    result.subtract(b)
    return result


def _slug(device: str) -> str:
    return device.removeprefix("the ").replace(" ", "").lower()


def _most(blocks: list[Allocation]) -> str:
    """The line with most of the blocks, and its share."""
    from .allocations import by_line

    share = by_line(blocks, 1)[0]
    where = f"from {share.site}" if share.site.file else "in the backward pass, or other threads without Python's stack"
    return f"{100 * share.size / sum(block.size for block in blocks):.0f}% {where}"


def _left(blocks: list[Allocation], most: int) -> list[Left]:
    """What stays, by line. Never more than what the test has added: a block may take the place of an older one."""
    from .allocations import by_line

    found = []
    for share in by_line(blocks, _MAX_LEFT):
        largest = max((block for block in blocks if block.site == share.site), key=lambda block: block.size)
        size = min(share.size, most)
        most -= size
        if size > 0:
            found.append(Left(str(share.site), size, largest.device, largest.address))
    return found
