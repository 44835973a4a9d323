"""Servers on loopback that a test reads a fleet from: S3 behind a proxy that misbehaves, and files over HTTP with ranges."""

import contextlib
import http.client
import http.server
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from moto.server import ThreadedMotoServer

SLOW_SECONDS = 0.02
"""Delay of each answer: with 8 files and a few requests each, a test takes no second more."""


@dataclass
class Misbehaviour:
    """What a proxy does wrong to every request whose number is a multiple of the key."""

    faults: dict[int, Callable[["Proxy", bytes], None]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, line: str) -> Callable[["Proxy", bytes], None] | None:
        with self.lock:
            self.requests.append(line)
            number = len(self.requests)
            fault = next((fault for every, fault in self.faults.items() if number % every == 0), None)
            self.done += fault is not None
            return fault


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes requests on to the server behind it, slowly, and with faults."""

    protocol_version = "HTTP/1.1"
    backend: int
    misbehaviour: Misbehaviour

    def do_GET(self) -> None:
        time.sleep(SLOW_SECONDS)
        upstream = http.client.HTTPConnection("127.0.0.1", self.backend, timeout=30)
        upstream.request(self.command, self.path, headers=dict(self.headers.items()))
        answer = upstream.getresponse()
        body = answer.read()
        fault = self.misbehaviour.next(f"{self.command} {self.path} {self.headers.get('Range', '')}")
        if fault:
            fault(self, body)
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
        upstream.close()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def refuse(status: int) -> Callable[[Proxy, bytes], None]:
    """An error of the server, as object stores send them under load."""

    def fault(proxy: Proxy, body: bytes) -> None:
        proxy.send_response(status)
        proxy.send_header("Content-Length", "0")
        proxy.end_headers()

    return fault


def cut(proxy: Proxy, body: bytes) -> None:
    """The connection breaks in the middle of the answer."""
    proxy.send_response(200 if "Range" not in proxy.headers else 206)
    proxy.send_header("Content-Length", str(len(body) + 10))
    proxy.end_headers()
    proxy.wfile.write(body[: len(body) // 2])
    proxy.close_connection = True


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def s3() -> Iterator[int]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()


@contextlib.contextmanager
def proxy(backend: int, misbehaviour: Misbehaviour) -> Iterator[int]:
    with serving(type("OneProxy", (Proxy,), {"backend": backend, "misbehaviour": misbehaviour})) as port:
        yield port


class RangedFiles(http.server.BaseHTTPRequestHandler):
    """Files of one folder, with ranged requests; no listing, like most web servers."""

    protocol_version = "HTTP/1.1"
    folder: pathlib.Path
    ranges: list[str]

    def do_GET(self) -> None:
        path = self.folder / pathlib.PurePosixPath(self.path).name
        if not path.is_file():
            refuse(404)(self, b"")  # type: ignore[arg-type]
            return
        body, status = path.read_bytes(), 200
        if asked := self.headers.get("Range"):
            self.ranges.append(asked)
            first, _, last = asked.removeprefix("bytes=").partition("-")
            whole, status = len(body), 206
            body = body[int(first) : int(last) + 1]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{whole}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Wed, 18 Nov 2026 00:00:00 GMT")
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def do_PROPFIND(self) -> None:
        refuse(405)(self, b"")  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def ranged_files(folder: pathlib.Path, ranges: list[str]) -> Iterator[int]:
    with serving(type("OneFolder", (RangedFiles,), {"folder": folder, "ranges": ranges})) as port:
        yield port
