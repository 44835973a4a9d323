"""The live socket of this process: a watcher sends one line of JSON and gets one line back.

A thread waits in the kernel for questions, so a run that nobody watches pays nothing. Only the user who runs the program
and root may ask. The socket is in a private folder of the user; a watcher in another session, with another environment,
finds it in the kernel's list of sockets.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from typing import Any

from ..interpreter import threads
from ..interpreter.descriptors import identity, out_of_the_way

FOLDER_VARIABLE = "OOMPH_RUNTIME_DIR"
_MAX_REQUEST_BYTES = 4096
_MAX_PATH_BYTES = 107
"""The kernel's limit for the path of a socket."""
_MAX_CLIENTS = 16
_REPLY_TIMEOUT_SECONDS = 1.0
"""How long a client may take to read its reply: others wait meanwhile."""

Question = dict[str, Any]


def folders(environ: Mapping[str, str], host: str) -> list[str]:
    """Folders to listen in, best first. `folders` in `crates/live` has the same rule; `crates/live/folders.json` tests both."""
    if named := environ.get(FOLDER_VARIABLE):
        return [named]
    # Homes are shared between machines, sockets are not.
    host = host.split(".")[0]
    host = host if host and "/" not in host else "localhost"
    home = environ["HOME"] if "HOME" in environ else os.path.expanduser("~")
    cache, runtime = environ.get("XDG_CACHE_HOME", ""), environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(cache):
        cache = os.path.join(home, ".cache")
    # First the folder that is still there after a logout, as jobs are.
    found = [os.path.join(cache, "oomph", "live", host), os.path.join(runtime, "oomph")]
    return [folder for folder in found if os.path.isabs(folder)]


class OwnSocket:
    """A socket that stays away from its number once that is the program's."""

    def __init__(self, opened: socket.socket) -> None:
        timeout = opened.gettimeout()
        self.socket = socket.socket(fileno=out_of_the_way(opened.detach()))
        self.socket.settimeout(timeout)
        self._identity = identity(self.socket.fileno())

    def fileno(self) -> int:
        return self.socket.fileno()

    def is_ours(self) -> bool:
        return self.fileno() >= 0 and identity(self.fileno()) == self._identity

    def close(self) -> None:
        if self.is_ours():
            self.socket.close()
        else:
            self.socket.detach()


class LiveSocket:
    """Answers with what `answer` gives for a question, from `open` to `close`."""

    def __init__(self, answer: Callable[[Question], dict[str, Any]]) -> None:
        self._answer = answer
        self._listener: OwnSocket | None = None
        self._path = ""
        self._clients: dict[OwnSocket, bytes] = {}
        """What each has asked so far; the thread's own."""

    def open(self) -> None:
        if self._listener is not None:
            return
        opened, self._path = _listener()
        self._listener = OwnSocket(opened)
        threads.start(self._serve, self._listener)

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            if listener.is_ours():
                listener.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes the rest

    def forked(self) -> None:
        """In a forked process, which has copies of the sockets and no thread: they stay the parent's. A client whose connection
        was held open here would not see that the parent has exited."""
        for client in self._clients:
            client.close()
        self._clients = {}
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _serve(self, listener: OwnSocket) -> None:
        clients: dict[OwnSocket, bytes] = {}
        self._clients = clients
        # Not epoll, whose own descriptor the program could close without a trace.
        waiting = selectors.PollSelector()
        waiting.register(listener, selectors.EVENT_READ)
        while listener is self._listener and listener.is_ours():
            ready = [key.fileobj for key, _ in waiting.select()]
            # Before any is used: the program may have closed some meanwhile.
            for client in [client for client in clients if not client.is_ours()]:
                _dismiss(client, clients, waiting)
            for client in [client for client in clients if client in ready]:
                asked = self._hear(client, clients[client])
                if asked is None:
                    _dismiss(client, clients, waiting)
                else:
                    clients[client] = asked
            if listener in ready and listener.is_ours():
                accepted = _accepted(listener.socket, len(clients))
                if accepted is not None:
                    clients[accepted] = b""
                    waiting.register(accepted, selectors.EVENT_READ)
        for client in clients:
            client.close()
        listener.close()

    def _hear(self, client: OwnSocket, before: bytes) -> bytes | None:
        """Answers the questions that are complete, and gives the rest; nothing when the client is to go."""
        try:
            received = client.socket.recv(_MAX_REQUEST_BYTES)
            *lines, rest = (before + received).split(b"\n")
            if not received or len(rest) > _MAX_REQUEST_BYTES:
                return None
            for line in lines:
                question = json.loads(line)
                answer = self._answer(question if isinstance(question, dict) else {})
                said = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
                if not client.is_ours():
                    return None
                client.socket.sendall(said)
            return rest
        except Exception:
            return None  # whatever a client does or asks is its own trouble


def _dismiss(client: OwnSocket, clients: dict[OwnSocket, bytes], waiting: selectors.BaseSelector) -> None:
    waiting.unregister(client)
    del clients[client]
    client.close()


def _accepted(listener: socket.socket, clients: int) -> OwnSocket | None:
    try:
        client, _ = listener.accept()
    except OSError:
        return None
    if clients >= _MAX_CLIENTS or not _may_ask(client):
        client.close()
        return None
    client.settimeout(_REPLY_TIMEOUT_SECONDS)
    return OwnSocket(client)


def _may_ask(client: socket.socket) -> bool:
    """Whether it is this user, or root. Where the system does not say, the socket's own rights have to do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return user in (0, os.getuid())


def _listener() -> tuple[socket.socket, str]:
    """A socket that listens in the first folder that can be used, and its path."""
    reasons = []
    for folder in folders(os.environ, socket.gethostname()):
        try:
            return _listen_in(_private(folder))
        except (OSError, ValueError) as error:  # a path with a zero in it is a ValueError
            reasons.append(f"`{folder}`: {error.strerror if isinstance(error, OSError) and error.strerror else error}")
    why = "; ".join(reasons) or "there is no home folder"
    raise OSError(f"no private folder for its socket ({why}); name one of your own with {FOLDER_VARIABLE}")


def _private(folder: str) -> str:
    """A folder, made if it is not there, and refused if anybody else may use it; its path without links."""
    folder = os.path.realpath(folder)
    if not os.environ.get(FOLDER_VARIABLE):
        there = folder
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        # As with sudo: root's folders in the home of a user would be in that user's way.
        if os.lstat(there).st_uid != os.getuid():
            raise PermissionError(f"`{there}` belongs to another user")
    _make(folder)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError("it belongs to another user")
    if found.st_mode & 0o077:
        raise PermissionError(f"other users have access to it; `chmod 700 {folder}`")
    return folder


def _make(folder: str) -> None:
    """Makes a folder and those above it, all of them private whatever the program's umask is."""
    if os.path.isdir(folder):
        return
    _make(os.path.dirname(folder))
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)


def _listen_in(folder: str) -> tuple[socket.socket, str]:
    _remove_stale(folder)
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    hidden, path = os.path.join(folder, f".{name}"), os.path.join(folder, f"{name}.sock")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise OSError("its path is too long for a socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(hidden)
        os.chmod(hidden, 0o600)
        listener.listen(_MAX_CLIENTS)
        listener.setblocking(False)
        # Under its name only now: a socket that does not listen yet looks like an abandoned one.
        os.rename(hidden, path)
    except OSError:
        listener.close()
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise
    return listener, path


def _remove_stale(folder: str) -> None:
    """Sockets of processes that were killed."""
    for name in os.listdir(folder):
        if not name.endswith(".sock"):
            continue
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0.0)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
