"""Programs that run on while somebody watches them, and the watcher in a real terminal."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conftest import FORKING_PYTHON, MODEL, OOMPH
from schemas import parsed

PROGRAM = (
    MODEL
    + """
    import os, time

    kept = []

    def leak(steps):
        for _ in range(steps):
            kept.append(torch.empty(2 << 20, device=DEVICE))  # 8 MiB
            train(1)

    def say(word):
        rows = torch.cuda.memory_stats() if DEVICE == "cuda" else {}
        print(word, os.getpid(), json.dumps(rows), flush=True)
        # Whoever runs us lets us go on by a file.
        while not os.path.exists(word):
            time.sleep(0.02)

    import json
"""
)


class Running:
    """A program under `oomph run` on an emulated GPU, which stops where it says a word."""

    def __init__(
        self, folder: pathlib.Path, program: str, *options: str, launcher: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        (folder / "train.py").write_text(textwrap.dedent(program))
        # The paths of sockets are short, and those of a test's own folder are not.
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="oomph-", dir="/tmp"))
        # Tests that have another HOME still need a cache that nobody else can write to.
        cache = {"OOMPH_CACHE_DIR": os.path.expanduser("~/.cache/oomph")}
        self.env = {**os.environ, **cache, "NO_COLOR": "1", "OOMPH_RUNTIME_DIR": str(self.sockets), **(env or {})}
        command = [OOMPH, "run", "--emulate", "h200", "--python", FORKING_PYTHON.emulated, "-o", "recording", *options]
        self.process = subprocess.Popen(
            [*command, "--", *launcher, "train.py"],
            cwd=folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("w"),
            text=True,
        )

    def wait_for(self, word: str) -> tuple[int, dict[str, int]]:
        """The process and its counters, where it says the word."""
        for line in self.process.stdout:
            if line.startswith(word + " "):
                _, pid, rows = line.split(" ", 2)
                return int(pid), json.loads(rows)
        raise AssertionError((self.folder / "stderr").read_text())

    def let_go(self, word: str) -> None:
        (self.folder / word).touch()

    def finish(self) -> int:
        self.process.stdout.read()
        return self.process.wait(timeout=60)

    def socket_files(self) -> list[pathlib.Path]:
        return sorted(self.sockets.glob("*.sock"))

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(self.socket_files()[0]))
        client.settimeout(10)
        return client

    def watch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [OOMPH, "watch", *arguments], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60
        )

    def look(self, *arguments: str) -> dict[str, Any]:
        """What one look says of the only device."""
        done = self.watch("--once", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        (device,) = parsed("watch", done.stdout)["devices"]
        return device


@contextmanager
def running(folder: pathlib.Path, program: str, *options: str, **more: Any) -> Iterator[Running]:
    program_running = Running(folder, PROGRAM + program, *options, **more)
    try:
        yield program_running
    finally:
        program_running.process.kill()
        program_running.process.wait()
        program_running.process.stdout.close()
        shutil.rmtree(program_running.sockets, ignore_errors=True)


class Screen:
    """A command in a terminal of its own, by tmux."""

    def __init__(self, command: str, env: dict[str, str], folder: pathlib.Path, width: int = 80, height: int = 24) -> None:
        self._server = f"oomph-{os.getpid()}-{id(self)}"
        self._env = {name: value for name, value in env.items() if name not in ("TMUX", "TMUX_PANE")}
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(folder), "sh")
        self.type(command)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-L", self._server, *arguments], env=self._env, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, line: str) -> None:
        self._tmux("send-keys", line, "Enter")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def text(self, *options: str) -> str:
        return self._tmux("capture-pane", "-p", *options)

    def shows(self, pattern: str, seconds: float = 20.0) -> str:
        """Returns the screen once it matches the pattern and two captures in a row are equal: a frame comes in several parts."""
        end = time.monotonic() + seconds
        before, screen = None, self.text()
        while screen != before or not re.search(pattern, screen):
            what = "changes all the time" if re.search(pattern, screen) else f"has no {pattern!r}"
            assert time.monotonic() < end, f"the screen {what}:\n{screen}"
            time.sleep(0.05)
            before, screen = screen, self.text()
        return screen

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._server, "kill-server"], capture_output=True)


@contextmanager
def screen(command: str, env: dict[str, str], folder: pathlib.Path, **size: int) -> Iterator[Screen]:
    shown = Screen(command, env, folder, **size)
    try:
        yield shown
    finally:
        shown.close()
