"""Runs small programs in forks of a process that has imported torch: importing it takes longer than they do."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

# Each line is a program's file, its output and its errors; the answer is its exit code.
SERVER = """
import json, os, runpy, sys, traceback
import torch, torch._dynamo
for line in sys.stdin:
    program, out, err = json.loads(line)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for path, descriptor in ((os.devnull, 0), (out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
            sys.argv = [program]
            runpy.run_path(program, run_name="__main__")
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else exit.code is not None
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@dataclass
class Forks:
    """A process that has imported torch, and runs programs in its children."""

    process: subprocess.Popen[str]
    folder: pathlib.Path

    def run(self, program: pathlib.Path) -> subprocess.CompletedProcess[str]:
        out, err = self.folder / "out", self.folder / "err"
        self.process.stdin.write(json.dumps([str(program), str(out), str(err)]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the server has ended: {self.process.wait()}"
        return subprocess.CompletedProcess([str(program)], int(answer), out.read_text(), err.read_text())


@contextlib.contextmanager
def forks(**environment: str) -> Iterator[Forks]:
    # One thread: a pool of threads does not survive a fork.
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", SERVER]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        yield Forks(process, pathlib.Path(folder))
        process.stdin.close()
        process.wait(timeout=60)
