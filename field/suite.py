"""Runs one of PyTorch's test files and writes events, for `suites.py`, which starts this script.

    python suite.py FILE EVENTS LEFT_OUT TESTS

Each line of EVENTS is a test that starts, `{"start": NAME}`, a result of it, `{"result": OUTCOME, "cause": LINE}`, its end,
`{"end": NAME}`, or the end of all, `{"finished": true}`. Tests named in the file LEFT_OUT are left out, and those that do not match
the pattern TESTS.
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
        self.fd = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.pid = os.getpid()
        with open(left_out) as names:
            self.left_out = set(names.read().splitlines())
        self.tests = tests

    def write(self, **event: str | bool) -> None:
        if os.getpid() == self.pid:  # not in forked children, which may end up in pytest's code
            os.write(self.fd, json.dumps(event).encode() + b"\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        names = [name(item.nodeid) for item in items]
        items[:] = [
            item for item, test in zip(items, names) if test not in self.left_out and fnmatch.fnmatchcase(test, self.tests)
        ]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(start=name(nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or report.when == "call" or report.skipped:
            crash = getattr(report.longrepr, "reprcrash", None)
            cause = crash.message if crash else str(report.longrepr or "")
            # An expected failure is "skipped" to pytest, an unexpected success "failed".
            self.write(result=report.outcome, cause=" ".join(cause.split())[:300])

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(end=name(nodeid))

    def pytest_sessionfinish(self) -> None:
        self.write(finished=True)


def name(nodeid: str) -> str:
    """Class and method."""
    return nodeid.split("::", 1)[-1]


if __name__ == "__main__":
    file, events, left_out, tests = sys.argv[1:]
    sys.argv[1:] = []  # PyTorch's tests have options of their own
    quiet = ["-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "--capture=fd", "--tb=short"]
    sys.exit(pytest.main([file, *quiet], plugins=[Events(events, left_out, tests)]))
