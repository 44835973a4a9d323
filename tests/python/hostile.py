"""A user who wants to stop whoever watches: sockets and files of all kinds, in a folder of that user's own.

Run as a program it answers until it is killed: `hostile.py FOLDER KIND COUNT`.
"""

import contextlib
import json
import os
import pathlib
import secrets
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

STRANGER = 54321
"""A user who is nobody else on the machine."""


def stranger() -> int:
    """Another user if the tests are run by root, who watches everybody; otherwise the same."""
    return STRANGER if os.getuid() == 0 else os.getuid()


@contextlib.contextmanager
def folder_of(user: int) -> Iterator[pathlib.Path]:
    """A private folder of a user, which that user can reach."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="oomph-", dir="/tmp")).resolve()
    os.chown(place, user, -1)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def hostile(folder: pathlib.Path, kind: str, count: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Peers of a kind, once they listen."""
    process = subprocess.Popen(
        ["python3", "-", str(folder), kind, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=stranger()
    )
    try:
        # By its text: another user may not be able to read this file.
        process.stdin.write(pathlib.Path(__file__).read_text())
        process.stdin.close()
        assert process.stdout.readline() == "listening\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def answer(folder: str, kind: str) -> bytes:
    device = {"device": 0, "allocated": 5, "reserved": 9}
    state = {
        "version": 1,
        "pid": os.getpid(),
        "host": "",
        "rank": None,
        "command": ["python", f"{kind}.py"],
        "folder": folder,
        "name": "rank0",
        "kind": "cuda",
        "started_us": 1,
        "time_us": 2,
        "devices": [device],
    }
    if kind == "endless":
        return b"[" * (64 << 20)
    if kind == "devices":
        state["devices"] = [{**device, "device": number} for number in range(20_000)]
    return json.dumps(state).encode() + b"\n"


def listen(folder: str) -> socket.socket:
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/.{name}")
    listener.listen(64)
    os.rename(f"{folder}/.{name}", f"{folder}/{name}.sock")
    return listener


def main(folder: str, kind: str, count: int) -> None:
    listeners = [listen(folder) for _ in range(count)]
    if kind == "links":
        for number in range(3000):
            os.symlink(listeners[0].getsockname().replace("/.", "/") + ".sock", f"{folder}/{number}-00000000.sock")
    if kind == "pipe":
        os.mkfifo(f"{folder}/rank0.json")
    print("listening", flush=True)
    with selectors.DefaultSelector() as waiting:
        for listener in listeners:
            waiting.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj in listeners:
                    connection, _ = key.fileobj.accept()
                    waiting.register(connection, selectors.EVENT_READ)
                    continue
                with contextlib.suppress(OSError):
                    if key.fileobj.recv(4096) and kind != "silent":
                        key.fileobj.sendall(answer(folder, kind))
                        if kind != "pipe":
                            continue
                if kind == "pipe":
                    sys.exit()  # whoever reads how it ended waits for a pipe
                waiting.unregister(key.fileobj)
                key.fileobj.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
