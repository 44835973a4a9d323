"""Runs one of PyTorch's test files and writes an event for each test, for `suites.py`, which starts this script.

    python suite.py FILE EVENTS LEFT_OUT TESTS

Each line of EVENTS is a test that starts, `{"test": NAME}`, or its result, `{"test": NAME, "result": WORD, "cause": LINE}`.
Tests that match a pattern in the file LEFT_OUT are left out, and those that do not match the pattern TESTS.
"""

from __future__ import annotations

import fnmatch
import json
import os
import sys
from typing import Any

import pytest


class Events:
    def __init__(self, events: str, left_out: str, tests: str) -> None:
        self.fd = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self.pid = os.getpid()
        with open(left_out) as patterns:
            self.left_out = patterns.read().splitlines()
        self.tests = tests

    def write(self, **event: str) -> None:
        if os.getpid() == self.pid:
            os.write(self.fd, json.dumps(event).encode() + b"\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        matches = lambda item, pattern: fnmatch.fnmatchcase(name(item.nodeid), pattern)
        items[:] = [
            item for item in items if matches(item, self.tests) and not any(matches(item, pattern) for pattern in self.left_out)
        ]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(test=name(nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or report.when == "call" or report.skipped:
            crash = getattr(report.longrepr, "reprcrash", None)
            cause = crash.message if crash else str(report.longrepr or "")
            # An expected failure is "skipped" to pytest, an unexpected success "failed".
            self.write(test=name(report.nodeid), result=report.outcome, cause=" ".join(cause.split())[:300])


def name(nodeid: str) -> str:
    """Class and method."""
    return nodeid.split("::", 1)[-1]


if __name__ == "__main__":
    file, events, left_out, tests = sys.argv[1:]
    sys.argv[1:] = []  # PyTorch's tests have options of their own
    quiet = ["-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "--capture=fd", "--tb=short"]
    sys.exit(pytest.main([file, *quiet], plugins=[Events(events, left_out, tests)]))
