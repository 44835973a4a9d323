"""A program in a fork of `ForkingPython` is as in an interpreter of its own, which the other tests rely on."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from conftest import FORKING_PYTHON


def ran(python: str, folder: pathlib.Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        input="given\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


SURROUNDINGS = """
    import atexit, os, sys, threading
    atexit.register(print, "exits")
    print(__name__, globals().get("__file__"), getattr(__spec__, "name", None), sys.argv, sys.path, os.getcwd(), os.environ.get("MINE"), sys.stdin.read())
    print([name for name in sys.modules if name.startswith("torch")], sys.modules["__main__"].__dict__ is globals(), sys.flags)
    print([thread.name for thread in threading.enumerate()], sys.executable, sys.orig_argv[1:], type(sys.stdout), sys.stdout.line_buffering)
"""


@pytest.mark.parametrize("arguments", [("program.py", "--x", ""), ("-m", "program", "y"), ("-c", "import program", "-z")])
def test_a_program_has_the_same_surroundings(tmp_path, arguments):
    (tmp_path / "program.py").write_text(textwrap.dedent(SURROUNDINGS))
    (tmp_path / "more").mkdir()
    (tmp_path / "more/sitecustomize.py").write_text("print('site')")
    environment = {"MINE": "1", "PYTHONPATH": str(tmp_path / "more")}
    alone = ran(sys.executable, tmp_path, *arguments, **environment)
    assert alone[0] == 0 and alone[1].startswith("site\n") and alone[1].endswith("exits\n"), alone
    assert ran(FORKING_PYTHON.cpu, tmp_path, *arguments, **environment) == alone


@pytest.mark.parametrize(
    "end",
    [
        "import sys; sys.exit()",
        "import sys; sys.exit(259)",
        "import sys; sys.exit('why')",
        "def fail():\n    raise ValueError('mine')\nfail()",
        "1 +",
        "raise KeyboardInterrupt",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os; os.abort()",
    ],
)
def test_a_program_ends_the_same_way(tmp_path, end):
    (tmp_path / "program.py").write_text(end)
    assert ran(FORKING_PYTHON.cpu, tmp_path, "program.py") == ran(sys.executable, tmp_path, "program.py")


@pytest.mark.parametrize(
    ("environment", "is_fork"), [({}, True), ({"PYTORCH_CUDA_ALLOC_CONF": "x:1"}, False), ({"OMP_NUM_THREADS": "2"}, False)]
)
def test_variables_that_are_read_at_the_start_get_a_new_interpreter(tmp_path, environment, is_fork):
    (tmp_path / "program.py").write_text("import os, sys; print(os.getppid(), 'numpy' in sys.modules)")
    _, said, _ = ran(FORKING_PYTHON.cpu, tmp_path, "program.py", **environment)
    server = FORKING_PYTHON._servers["cpu"].pid
    assert said == (f"{server} True\n" if is_fork else f"{os.getpid()} False\n")


def test_a_program_whose_client_is_killed_ends(tmp_path):
    (tmp_path / "program.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(100)")
    client = subprocess.Popen([FORKING_PYTHON.cpu, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE)
    program = os.pidfd_open(int(client.stdout.readline()))
    client.kill()
    assert client.stdout.read() == b"", "nobody holds it any more"
    client.stdout.close()
    client.wait()
    os.close(program)
