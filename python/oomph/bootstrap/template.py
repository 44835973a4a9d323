"""A process that imports torch once, and then forks for each variant of a program that `oomph` runs.

It stops where Python loads `sitecustomize`, before the program: a fork goes on from there as an interpreter of its own, with
the environment, arguments and output of its variant. `oomph` writes a request as a line to the standard input, and finds how
the variant ended in a file. When the standard input ends, the process does.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
from typing import Any

from .settings import Settings
from .stash import Stash

_POLL_SECONDS = 0.02


def serve(settings: Settings) -> Settings | None:
    """Returns in the processes that run a variant, with the settings of that."""
    if settings.library is not None:
        ctypes.CDLL(settings.library, mode=ctypes.RTLD_GLOBAL)
    stash = Stash()
    stash.add("torch")
    stash.add("torch._dynamo")
    request = _wait_for_request()
    _become(request)
    stash.hide()
    return Settings.from_environment()


def _wait_for_request() -> dict[str, Any]:
    running: dict[int, str] = {}
    """Processes, and the files for how they end."""
    received = b""
    while True:
        ready, _, _ = select.select([0], [], [], _POLL_SECONDS if running else None)
        if ready:
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                request: dict[str, Any] = json.loads(line.decode("utf-8", "surrogateescape"))
                pid = os.fork()
                if pid == 0:
                    return request
                running[pid] = request["ended"]
        for pid in list(running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == pid:
                _write(running.pop(pid), status)


def _write(path: str, status: int) -> None:
    """All at once: who waits for the file reads it as soon as it is there."""
    with open(f"{path}.new", "w") as file:
        file.write(str(status))
    os.rename(f"{path}.new", path)


def _become(request: dict[str, Any]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    for descriptor, number in ((null, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    os.close(null)
    os.close(output)
    for name in set(os.environ) - set(request["environment"]):
        del os.environ[name]
    os.environ.update(request["environment"])
    # The interpreter has read the script, or the module, from its own arguments, and every variant has the same.
    own = request["own_arguments"]
    sys.argv[1:] = request["arguments"][own:]
    sys.orig_argv[1:] = request["arguments"]
