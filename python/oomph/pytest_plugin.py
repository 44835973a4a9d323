"""Memory limits for tests: `@pytest.mark.gpu_memory(limit="2GiB", leak="0B")`.

`limit` is what the test may hold at its peak above what was allocated when it began, `leak` what may stay allocated once
it is over and garbage is collected. Without a GPU the tensors on the CPU are measured, so the tests run anywhere.
`--oomph` measures all tests.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from .recording.api import DEVICES
from .sizes import format_size, parse_size

if TYPE_CHECKING:
    from pluggy import Result

    from .allocations import Allocation
    from .gauge import Gauge

_MARKER = "gpu_memory"
_MAX_LINES = 5
"""Lines in a message."""


@dataclass(frozen=True)
class Allowed:
    """What the marker of a test says. None: not measured."""

    limit: int | None
    leak: int | None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("oomph_device", "where gpu_memory measures: auto (a GPU if there is one), cuda or cpu", default="auto")
    group = parser.getgroup("oomph", "GPU memory (oomph)")
    group.addoption(
        "--oomph", action="store_true", help="measure the memory of each test, and list those that need or leave most"
    )
    group.addoption("--oomph-top", type=int, default=10, metavar="N", help="tests to list with --oomph (default: 10)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f'{_MARKER}(limit="2GiB", leak="0B"): fails if the test holds more memory than `limit` at its peak, '
        "or leaves more than `leak` behind (oomph)",
    )
    device = config.getini("oomph_device")
    if device not in DEVICES:
        raise pytest.UsageError(f"oomph_device: expected one of {', '.join(DEVICES)}, found {device!r}")
    if config.getoption("--oomph"):
        from .memory_of_tests import MemoryOfTests

        config.pluginmanager.register(MemoryOfTests(config), "oomph-memory-of-tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says what is wrong with a marker before any test runs."""
    for item in items:
        try:
            _allowed(item)
        except ValueError as error:
            raise pytest.UsageError(f"{item.nodeid}: {_MARKER}: {error}") from None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Result[None], None]:
    allowed = _allowed(item)
    if allowed is None:
        yield
        return
    # Only here: a test run without the marker does not import torch because of us.
    from .gauge import gauge_for

    gauge = gauge_for(item.config.getini("oomph_device"))
    if gauge is None:
        pytest.skip("oomph_device = cuda, but no GPU is available")
    gauge.start()
    try:
        before = gauge.allocated()
        outcome = yield
        if outcome.excinfo is None:
            problems = _problems(gauge, before, allowed)
            if problems:
                outcome.force_exception(pytest.fail.Exception("\n".join(problems), pytrace=False))
    finally:
        gauge.stop()


def _allowed(item: pytest.Item) -> Allowed | None:
    marker = item.get_closest_marker(_MARKER)
    if marker is None:
        return None
    if marker.args:
        raise ValueError(f"expected names, as in limit={marker.args[0]!r}")
    unknown = sorted(set(marker.kwargs) - {"limit", "leak"})
    if unknown:
        raise ValueError(f"expected `limit` or `leak`, found `{unknown[0]}`")
    if not marker.kwargs:
        raise ValueError('expected `limit` or `leak`, as in limit="2GiB"')
    sizes = {name: parse_size(value) for name, value in marker.kwargs.items()}
    return Allowed(sizes.get("limit"), sizes.get("leak"))


def _problems(gauge: Gauge, before: dict[int, int], allowed: Allowed) -> list[str]:
    """Limits that the test exceeded, and the lines that did it."""
    from .allocations import by_line
    from .gauge import blocks

    peak = gauge.peak()
    gc.collect()
    left = gauge.allocated()
    lines: list[str] = []

    def check(what: str, device: int, size: int, most: int | None, of: Callable[[Allocation], bool]) -> None:
        if most is None or size <= most:
            return
        over = f"{format_size(size - most)} over the limit of {format_size(most)}"
        lines.append(f"the test {what.format(format_size(size), gauge.name(device))}, {over}:")
        found = by_line((block for block in blocks(gauge) if block.device == device and of(block)), _MAX_LINES)
        lines.extend(f"  {share}" for share in found)

    for device, most in peak.items():
        start = before.get(device, 0)
        check("held {} on {} at its peak", device, most - start, allowed.limit, lambda block: block.at_peak)
        check("leaves {} on {}", device, left[device] - start, allowed.leak, lambda block: block.freed_after is None)
    return lines
