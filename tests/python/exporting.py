"""`oomph exporter` with real programs to export and a real Prometheus to scrape it."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from conftest import FORKING_PYTHON, OOMPH, ROOT, Predict

TIMEOUT_SECONDS = 60.0
"""Seconds that anything may take on a busy machine."""


@contextlib.contextmanager
def runtime() -> Iterator[pathlib.Path]:
    """A folder for sockets that no other test sees. The path of a socket has 107 bytes at most: pytest's own are too long."""
    with tempfile.TemporaryDirectory(prefix="oomph-", dir="/tmp") as folder:
        yield pathlib.Path(folder)


def until(what: Callable[[], Any], why: str) -> Any:
    """What is true at last."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, why
        time.sleep(0.05)
    return found


def asked(path: pathlib.Path) -> dict[str, Any]:
    """What a recorder answers on its socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect(str(path))
        connection.sendall(b'{"since": 0}\n')
        return json.loads(connection.makefile().readline())


class Running:
    """A program under `oomph run` that goes on until it is told to stop."""

    def __init__(self, folder: pathlib.Path, runtime: pathlib.Path, program: str, name: str, *options: str) -> None:
        self.folder = folder
        self.runtime = runtime
        folder.mkdir()
        Predict(folder).write(program, name)
        python = FORKING_PYTHON.emulated if "--emulate" in options else FORKING_PYTHON.cpu
        self.process = subprocess.Popen(
            [OOMPH, "run", *options, "--python", python, "-o", "recording", name],
            cwd=folder,
            env={**os.environ, "OOMPH_RUNTIME_DIR": str(runtime), "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @functools.cached_property
    def socket(self) -> pathlib.Path:
        """Where its recorder listens."""

        def found() -> pathlib.Path | None:
            assert self.process.poll() is None, self.process.stdout and self.process.stdout.read()
            own = (path for path in self.runtime.glob("*.sock") if asked(path)["folder"].startswith(str(self.folder)))
            return next(own, None)

        return until(found, "the recorder does not listen")

    @property
    def pid(self) -> int:
        return int(self.socket.name.split("-")[0])

    def says(self) -> dict[str, Any]:
        """What the recorder itself answers."""
        return asked(self.socket)

    def reaches(self, steps: int) -> None:
        until(lambda: self.says()["count"] >= steps, f"the program does not come to step {steps}")

    def finish(self) -> int:
        """Lets it come to its end; its exit code."""
        (self.folder / "stop").touch()
        said, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        print(said)
        return self.process.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(timeout=TIMEOUT_SECONDS)


@contextlib.contextmanager
def running(*arguments: Any) -> Iterator[Running]:
    program = Running(*arguments)
    try:
        yield program
    finally:
        (program.folder / "stop").touch()  # for what it has forked
        if program.process.poll() is None:
            program.kill()


@dataclass
class Exporter:
    process: subprocess.Popen[str]
    base: str
    said: str
    """What it has said when it began."""

    def get(self, path: str = "/metrics", **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(self.base + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> str:
        status, text = self.get()
        assert status == 200, text
        return text

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])


@contextlib.contextmanager
def exporter(runtime: pathlib.Path, *options: str, address: str = "127.0.0.1") -> Iterator[Exporter]:
    process = subprocess.Popen(
        [OOMPH, "exporter", "--listen", f"{address}:0", *options],
        env={**os.environ, "OOMPH_RUNTIME_DIR": str(runtime)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = ""
        while "http://" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        port = urllib.parse.urlparse(said[said.index("http://") :].split()[0]).port
        yield Exporter(process, f"http://127.0.0.1:{port}", said)
    finally:
        process.kill()
        process.wait(timeout=TIMEOUT_SECONDS)
        process.stderr.close()


def tool(name: str) -> str:
    """`prometheus` or `promtool`."""
    found = shutil.which(name) or shutil.which(name, path=ROOT / "target/prometheus/usr/bin")
    assert found, f"there is no {name}: `make prometheus` gets it"
    return found


class Prometheus:
    """A server that scrapes with the configuration of docs/reference/metrics.md."""

    def __init__(self, port: int) -> None:
        self._api = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, query: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(
            self._api + "query?" + urllib.parse.urlencode({"query": query}), timeout=TIMEOUT_SECONDS
        ) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]["result"]

    def value(self, query: str) -> float | None:
        """The one value of a query, if it has one yet."""
        try:
            found = self.ask(query)
        except OSError:
            return None  # it has not begun to listen
        assert len(found) < 2, found
        return float(found[0]["value"][1]) if found else None


@contextlib.contextmanager
def prometheus(folder: pathlib.Path, scrape: str, rules: str) -> Iterator[Prometheus]:
    folder.mkdir()
    (folder / "rules.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n" + scrape
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            tool("prometheus"),
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        cwd=folder,
    )
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait(timeout=TIMEOUT_SECONDS)
