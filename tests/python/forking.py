"""An interpreter that has imported torch before a program begins: importing it takes longer than most programs of the tests.

`ForkingPython` has paths for `--python`, or for a command of its own. Such an interpreter runs a program in a fork of a
server (forking_server.py) as `python` would: with its own environment, arguments, folder and streams, with the
`sitecustomize` of `oomph`, and with an `import torch` that the recorder sees. What a fork cannot do (options other than `-c`
and `-m`, variables that Python or torch read when they start, another emulator) is left to a new interpreter
(forking_client.py).
"""

import atexit
import os
import pathlib
import py_compile
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
STASH = HERE.parents[1] / "python/oomph/bootstrap/stash.py"
# One thread: a pool of threads does not survive a fork, and the tests share the cores anyway.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
EMULATED = {"MALLOC_ARENA_MAX": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""What `oomph` sets on an emulated GPU."""
READ_AT_START = ("PYTHON", "LD_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "OMP_", "MKL_", "KMP_", "MALLOC_")
"""Beginnings of variables that Python or torch read when they start."""
SET_PER_RUN = ("PYTHONPATH", "LD_LIBRARY_PATH", "TORCHINDUCTOR_CACHE_DIR")
"""Those of them that are different in every run, and that a fork can follow."""


class ForkingPython:
    """Interpreters with and without the emulator; each server starts when it is first needed."""

    def __init__(self, emulator: pathlib.Path) -> None:
        self._emulator = str(emulator)
        self._folder: pathlib.Path | None = None
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def cpu(self) -> str:
        """For programs that do not use an emulated GPU."""
        return self._path("cpu", None)

    @property
    def emulated(self) -> str:
        """For programs on an emulated GPU."""
        return self._path("emulated", self._emulator)

    def _path(self, kind: str, library: str | None) -> str:
        if self._folder is None:
            self._folder = self._prepare()
        client = self._folder / kind
        if kind not in self._servers:
            environment = {**os.environ, **ONE_THREAD}
            if library is not None:
                paths = (str(self._folder), os.environ.get("LD_LIBRARY_PATH"))
                environment |= {**EMULATED, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}
            address = str(self._folder / f"{kind}.sock")
            self._servers[kind] = self._start(kind, [address, *filter(None, [library])], environment)
            at_start = {name: environment[name] for name in environment if name.startswith(READ_AT_START)}
            settings = (sys.executable, address, at_start, READ_AT_START, SET_PER_RUN, library)
            program = (HERE / "forking_client.py").read_text()
            client.write_text(f"#!{sys.executable} -IS\nSETTINGS = {settings!r}\n{program}")
            client.chmod(0o700)
        return str(client)

    def _prepare(self) -> pathlib.Path:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="oomph-"))
        atexit.register(self._close)
        # The server's frame is at the bottom of every stack, and looks like those of `python -m`.
        py_compile.compile(str(HERE / "forking_server.py"), str(folder / "server.pyc"), dfile="<frozen runpy>", doraise=True)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (folder / name).symlink_to(self._emulator)
        return folder

    def _start(self, kind: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        log = self._folder / f"{kind}.log"
        with log.open("wb") as errors:
            server = subprocess.Popen(
                [sys.executable, self._folder / "server.pyc", STASH, *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert server.stdout.readline() == b"ready\n", log.read_text()
        return server

    def _close(self) -> None:
        for server in self._servers.values():
            server.stdin.close()
            server.wait(timeout=60)
            server.stdout.close()
        shutil.rmtree(self._folder)
