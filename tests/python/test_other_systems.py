"""The package where Linux's modules and functions are missing: simulated, in processes that take them away first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = ROOT / "fixtures/zoo/leak_infer_outputs.pickle.xz"

TAKE_AWAY = """
import faulthandler, importlib.abc, os, signal, socket, sys

MISSING = {
    os: "fork forkpty getegid geteuid getgid getpgid getuid killpg mkfifo register_at_fork sched_getaffinity setsid uname "
        "O_CLOEXEC O_NOFOLLOW O_NONBLOCK",
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGUSR1 SIGUSR2 pthread_sigmask setitimer sigwait",
    socket: "AF_UNIX SO_PEERCRED",
    faulthandler: "register unregister",
}
NOT_THERE = {"fcntl", "grp", "pwd", "resource", "termios"}

class NotThere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in NOT_THERE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def take_away():
    for module, names in MISSING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in NOT_THERE:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, NotThere())
    # Windows sends Ctrl-C for it.
    def kill(*_):
        raise AssertionError("os.kill")
    os.kill = kill
    # Only where oomph looks: others would look for Windows itself.
    platform, sys.platform = sys.platform, "win32"
    import oomph.interpreter.system
    sys.platform = platform
"""


def without_linux(program: str, *arguments: object, torch: bool) -> subprocess.CompletedProcess[str]:
    begin = "import torch" if torch else "NOT_THERE.add('torch')"
    text = f"{TAKE_AWAY}\n{begin}\ntake_away()\n{program}"
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_everything_that_needs_no_torch_is_imported_and_reads() -> None:
    program = """
import importlib, pkgutil, oomph
imported = []
for module in pkgutil.walk_packages(oomph.__path__, "oomph."):
    # They act when they are imported, need a trainer, or are not for Python.
    if module.name.endswith((".__main__", ".sitecustomize", ".attach_load", ".attach_start", ".lightning", ".transformers", ".liboomph_emulator", ".liboomph_tracer")):
        continue
    try:
        importlib.import_module(module.name)
        imported.append(module.name)
    except ModuleNotFoundError as error:
        assert error.name == "torch", (module.name, error)
for name in ("snapshot", "pytest_plugin", "recording.api", "recording.signals", "recording.live_socket", "bootstrap.lifeline"):
    assert f"oomph.{name}" in imported, name
assert len(imported) > 30, imported
print(oomph.load(sys.argv[1]).findings[0].kind)
recording = oomph.record().start()
recording.step()
recording.stop()
"""
    done = without_linux(program, SNAPSHOT, torch=False)
    assert (done.returncode, done.stdout) == (0, "leak\n"), done.stderr
    assert "nothing is recorded: ModuleNotFoundError: No module named 'torch'" in done.stderr


def test_a_program_records_itself_without_holders(tmp_path: Path) -> None:
    program = """
import json, pathlib, oomph
folder = pathlib.Path(sys.argv[1])
# Of a process that was killed, as far as the system knows.
folder.mkdir()
(folder / "rank0.json").write_text(json.dumps({"ended": "running", "pid": 4242, "host": socket.gethostname()}))

class Kernel:
    def OpenProcess(self, access, inherits, process):
        print("asked for", process)
        return 0

import ctypes
ctypes.windll = type("windll", (), {"kernel32": Kernel()})
kept = []
with oomph.record(folder, device="cpu") as recording:
    for _ in range(12):
        kept.append(torch.zeros(1 << 18))
        recording.step()
recorded = oomph.load(folder / "rank0.pickle")
print(recorded.findings[0].kind)
try:
    oomph.holders(kept[0])
except OSError as error:
    print(error)
from oomph.leaks import check_leaks
print(check_leaks(lambda: kept.append(torch.zeros(1 << 18)), repeat=8).verdict)
from oomph.recording.start import has_gpu
print(has_gpu())
"""
    done = without_linux(program, tmp_path / "recording", torch=True)
    assert done.returncode == 0, done.stderr
    kind, *rest = [line for line in done.stdout.splitlines() if line != "asked for 4242"]
    assert "asked for 4242" in done.stdout
    assert kind == "leak"
    holders = "what holds tensors is known on Linux only: the walk reads memory whose layout differs elsewhere"
    assert rest == [holders, "grows", "False"]
    assert "what holds tensors is not recorded: it is known on Linux only" in done.stderr
    assert "part of the recording is missing" not in done.stderr
    files = sorted(path.name for path in (tmp_path / "recording").iterdir())
    assert "rank0.json" in files and "rank0.heap" not in files
