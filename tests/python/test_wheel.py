"""The installed wheel: the command, what it brings along, and its types."""

import array
import fcntl
import os
import signal
import subprocess
import sys
import sysconfig
import termios
import time
from importlib.metadata import version
from pathlib import Path

import pytest

import oomph
from conftest import FIXTURES, OOMPH

LEAK = FIXTURES / "zoo/leak_infer_outputs.pickle.xz"
SCRIPT = Path(sysconfig.get_path("scripts")) / "oomph"
PACKAGE = Path(oomph.__file__).parent


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)  # type: ignore


@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-m", "oomph"]], ids=["script", "module"])
def test_the_command_is_that_of_the_binary(start: list[object]) -> None:
    for arguments, status in [
        (["report", LEAK], 0),
        (["report", "--fail-on", "high", LEAK], 1),
        (["report", "/nowhere"], 2),
        (["--help"], 0),
        (["report", "--nonsense"], 2),
        (["completions", "bash"], 0),
    ]:
        ours, binary = run(*start, *arguments), run(OOMPH, *arguments)
        assert (ours.stdout, ours.stderr, ours.returncode) == (binary.stdout, binary.stderr, status), arguments


def test_the_version_is_one() -> None:
    assert run(SCRIPT, "--version").stdout == f"oomph {oomph.__version__}\n"
    assert version("oomph") == oomph.__version__


def test_ctrl_c_ends_the_command_at_once() -> None:
    process = subprocess.Popen([SCRIPT, "report", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(b"\x80\x04}")
    process.stdin.flush()
    # Once the bytes are taken the command is in the middle of reading, and waits for more.
    left = array.array("i", [1])
    while left[0]:
        fcntl.ioctl(process.stdin, termios.FIONREAD, left)
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    assert process.wait(timeout=30) == -signal.SIGINT
    assert time.monotonic() - begun < 1
    assert process.stderr.read() == b"", "no traceback"


def test_a_closed_pipe_is_no_failure() -> None:
    process = subprocess.Popen([SCRIPT, "report", "--json", LEAK], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.wait(timeout=30), process.stderr.read()) == (0, b"")


def without_environment() -> dict[str, str]:
    """No environment is active: the interpreter is that of the wheel."""
    return {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "OOMPH_EMULATOR_LIB")}


def test_programs_run_in_the_interpreter_of_the_wheel(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os, sys; print('in', os.path.dirname(sys.executable), file=sys.stderr)")
    said = run(SCRIPT, "run", "program.py", cwd=tmp_path, env=without_environment()).stderr
    assert f"in {Path(sys.executable).parent}\n" in said
    other = tmp_path / "env/bin/python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    active = {**without_environment(), "VIRTUAL_ENV": str(tmp_path / "env")}
    said = run(SCRIPT, "run", "program.py", cwd=tmp_path, env=active).stderr
    assert f"in {other.parent}\n" in said, "an active environment goes first"


def test_the_cuda_emulator_is_in_the_wheel(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import torch\nmodel = torch.nn.Linear(1024, 1024, device='cuda')\nmodel(torch.ones(8, 1024, device='cuda'))\n"
    )
    done = run(SCRIPT, "predict", "--gpu", "l4", "--once", "program.py", cwd=tmp_path, env=without_environment())
    assert done.returncode == 0 and "FITS" in done.stdout, done.stderr


def mypy(*arguments: object, **options: object) -> None:
    done = run(sys.executable, "-m", *arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").exists()  # `make lint` checks the types


# To read all of torch takes a minute and tells nothing about us.
WITHOUT_TORCH = "[mypy-torch.*]\nfollow_imports = skip\n"


@pytest.mark.nightly
def test_the_stub_is_what_the_module_has(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{WITHOUT_TORCH}")
    mypy("mypy.stubtest", "--mypy-config-file", "mypy.ini", "oomph._native", cwd=tmp_path)


PROGRAM = """
import oomph

snapshot = oomph.load("snapshot.pickle")
peak: int = snapshot.peak.allocated
for finding in snapshot.findings:
    where: str = finding.site.file if finding.site else "?"
    print(finding.kind, finding.bytes, where)
fits: bool = snapshot.simulate(gpu="24GiB").fits
columns: list[str] = snapshot.tables["events"].columns
report: oomph.Report = snapshot.report(at="end")
reveal_type(oomph.__version__)
reveal_type(snapshot.diff(snapshot).pairs)
"""


@pytest.mark.nightly
def test_programs_of_users_are_checked(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = True\n{WITHOUT_TORCH}")
    good.write_text(PROGRAM)
    mypy("mypy", good, cwd=tmp_path)
    bad.write_text("import oomph\noomph.load(3)\noomph.load('a').report(at='middle')\noomph.load('a').peek\n")
    done = run(sys.executable, "-m", "mypy", bad, cwd=tmp_path)
    assert "Found 3 errors" in done.stdout, done.stdout
