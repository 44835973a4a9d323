"""`oomph view` in a real browser: a server for some inputs, and a probe of the page."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page, Playwright, expect

from conftest import OOMPH

ANSWER_TIMEOUT_MS = 15_000
"""How long an answer may take on a busy machine, in milliseconds."""

expect.set_options(timeout=ANSWER_TIMEOUT_MS)


@contextlib.contextmanager
def served(*inputs: pathlib.Path | str, command: tuple = (OOMPH,), env: dict[str, str] | None = None) -> Iterator[str]:
    """The address of a server that shows these inputs."""
    process = subprocess.Popen(
        [*command, "view", "--no-open", *map(str, inputs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), process.stderr.read()
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)


def launched(playwright: Playwright) -> Browser:
    """Debian's Chromium, drawing in software."""
    chromium = shutil.which("chromium")
    assert chromium, "there is no chromium: `make browser` installs it"
    return playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])


class PageProbe:
    """A page in the browser, with its requests and errors."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)

    def open(self, url: str) -> "PageProbe":
        self.page.goto(url)
        return self.settle()

    def settle(self) -> "PageProbe":
        """Waits until every answer is drawn. The page forbids evaluating strings, so its state is polled."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_MS / 1000
        quiet = 0
        while quiet < 3:
            assert time.monotonic() < deadline, f"the page does not settle: {self.errors}"
            quiet = quiet + 1 if self.page.evaluate("() => Boolean(window.oomph?.settled())") else 0
            time.sleep(0.05)
        return self

    def ask(self, question: str) -> Any:
        """The server's own answer."""
        return self.page.evaluate("async (path) => (await fetch(path)).json()", f"api/{question}")

    def timeline(self, number: int = 0) -> Any:
        """The picture of a timeline."""
        return self.page.locator("section.timeline").nth(number).locator(".plot canvas.bands")

    def point(self, across: float, up: float, number: int = 0) -> tuple[float, float]:
        """A point of a timeline: shares of its width and height."""
        box = self.timeline(number).bounding_box()
        return box["x"] + across * box["width"], box["y"] + (1 - up) * box["height"]

    def state(self) -> dict[str, str]:
        """Parameters in the address, once it no longer changes."""
        self.page.wait_for_timeout(400)
        text = self.page.evaluate("() => location.hash.slice(1)")
        return dict(self.page.evaluate("(text) => [...new URLSearchParams(text)]", text))
