"""A program under `oomph run`, `predict` and `check` is the one that it is without them: its arguments, files, environment and the
processes that it starts are its own. Most programs here do without torch: what surrounds them is the same."""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

from conftest import FORKING_PYTHON, OOMPH, Predict
from exporting import until

PYTHON = ("--python", sys.executable)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def ended_within(seconds: float, pids: list[int]) -> bool:
    deadline = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def started(predict: Predict, program: str, *command: str) -> tuple[subprocess.Popen, list[int]]:
    """A running `oomph`, and the process ids that its program has said in its first line."""
    predict.write(program)
    process = subprocess.Popen(
        [OOMPH, *command, *PYTHON, "train.py"], cwd=predict.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return process, json.loads(process.stdout.readline())


# Arguments


ARGUMENTS = [
    "--gpus", "4", "--gpu", "h100", "--json", "--try", "amp", "--vary", "x=1,2", "--gpu-memory", "8GiB", "-o", "x", "--max-peak", "1GiB",
    "--help", "--", "-m", "--", "",
]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ("run", *PYTHON),
        ("run", *PYTHON, "--"),
        ("run", "--", sys.executable),
        ("predict", "--gpu", "l4", *PYTHON),
        ("predict", "--gpu", "l4", "--", sys.executable),
        ("check", "--no-leaks"),
        ("check", "--no-leaks", "--", sys.executable),
    ],
)
def test_everything_after_the_script_reaches_the_program(predict: Predict, command: tuple[str, ...]) -> None:
    predict.write("import json, sys; print('ARGUMENTS', json.dumps(sys.argv[1:]))")
    done = predict.run(*command, "train.py", *ARGUMENTS)
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("ARGUMENTS ")]
    assert json.loads(line.removeprefix("ARGUMENTS ")) == ARGUMENTS


def test_a_module_keeps_its_arguments(predict: Predict) -> None:
    predict.write("import sys; print(sys.argv[1:])", "module.py")
    assert predict.run("run", *PYTHON, "-m", "module", "--json", "--", "x").stdout == "['--json', '--', 'x']\n"


# The folder of the recording


def test_a_folder_with_files_of_others_is_refused_before_the_program_starts(predict: Predict) -> None:
    predict.write("open('started', 'w')")
    folder = predict.folder / "shards"
    folder.mkdir()
    for name in ("rank0.pt", "rank12.log"):
        (folder / name).write_text("precious")
    for command in (("run", *PYTHON), ("predict", "--gpu", "l4", *PYTHON), ("check", "--no-leaks")):
        program = ("--", sys.executable, "train.py") if command[0] == "check" else ("train.py",)
        done = predict.run(*command, "-o", "shards", *program)
        assert done.returncode == 2 and "`shards` holds files that are not of a recording" in done.stderr, done.stderr
        assert not (predict.folder / "started").exists()
    done = predict.run("run", *PYTHON, "-o", "shards", "--force", "train.py")
    assert done.returncode == 0 and (predict.folder / "started").exists(), done.stderr
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"rank0.pt": "precious", "rank12.log": "precious"}


def test_a_recording_is_replaced_only_by_force(predict: Predict) -> None:
    predict.write("import torch; torch.ones(1000)")
    command = ("run", "--cpu", "--python", FORKING_PYTHON.cpu, "-o", "recording")
    done = predict.run(*command, "train.py")
    assert done.returncode == 0, done.stderr
    first = (predict.folder / "recording/rank0.pickle").read_bytes()
    done = predict.run(*command, "train.py")
    assert done.returncode == 2 and "`recording` already holds a recording of 20" in done.stderr, done.stderr
    assert "--force" in done.stderr and (predict.folder / "recording/rank0.pickle").read_bytes() == first
    predict.write("import torch; torch.ones(2000)")
    done = predict.run(*command, "--force", "train.py")
    assert done.returncode == 0 and (predict.folder / "recording/rank0.pickle").read_bytes() != first, done.stderr
    # Without a name there is nothing to ask.
    for expected in ("oomph-recording", "oomph-recording-2"):
        done = predict.run("run", "--cpu", "--python", FORKING_PYTHON.cpu, "train.py")
        assert f"recorded in {expected}\n" in done.stderr, done.stderr
    assert "oomph-recording exists: recording to oomph-recording-2" in done.stderr


def test_the_recording_goes_where_oomph_was_started_whatever_the_program_does(predict: Predict) -> None:
    predict.write("""
        import os
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        os.umask(0)
        import torch
        torch.ones(1000)
    """)
    done = predict.run("run", "--cpu", "--python", FORKING_PYTHON.cpu, "-o", "recording", "train.py")
    assert (predict.folder / "recording/rank0.pickle").exists(), done.stderr
    assert not list((predict.folder / "elsewhere").iterdir())
    assert stat.S_IMODE((predict.folder / "recording").stat().st_mode) == 0o700


def test_a_folder_may_have_a_name_that_is_not_utf_8(predict: Predict) -> None:
    folder = os.path.join(os.fsencode(predict.folder), b"caf\xe9")
    os.mkdir(folder)
    script = predict.write("import torch; torch.zeros(1, device='cuda'); print('ran')")
    command = [OOMPH, "run", "--emulate", "h200", "--", FORKING_PYTHON.emulated, script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "ran"), done.stderr
    assert b"rank0.pickle" in os.listdir(os.path.join(folder, b"oomph-recording"))


def test_a_folder_that_nothing_was_recorded_to_is_not_left_behind(predict: Predict) -> None:
    predict.write("print('hello')")
    predict.run("run", *PYTHON, "train.py")
    assert not (predict.folder / "oomph-recording").exists()


# What is left after the program, and what is not


GRANDCHILD_OF_A_THREAD = """
    import subprocess, sys, threading

    def spawn():
        global child
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"])

    thread = threading.Thread(target=spawn)
    thread.start()
    thread.join()
    print("code", child.wait())
"""


def test_a_process_outlives_the_thread_that_started_it(predict: Predict) -> None:
    predict.write(GRANDCHILD_OF_A_THREAD)
    done = predict.run("run", "--emulate", "h100", *PYTHON, "train.py")
    assert done.stdout == "code 0\n", done.stderr


FAMILY = """
    import json, os, subprocess, sys, time
    SLEEP = "import time; time.sleep(100)"
    spawned = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    forked = os.fork()
    if forked == 0:
        time.sleep(100)
    # A daemon: its parent is gone.
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            time.sleep(100)
        os._exit(0)
    daemon = int(os.read(reader, 20))
    time.sleep(1)
    print(json.dumps([os.getpid(), spawned.pid, forked, daemon]), flush=True)
    time.sleep(100 if WAITS else 0)
    os._exit(0)
"""


def test_all_processes_of_an_emulated_run_end_when_oomph_is_killed(predict: Predict) -> None:
    process, family = started(predict, FAMILY.replace("WAITS", "True"), "run", "--emulate", "h100")
    assert all(is_running(pid) for pid in family)
    process.kill()
    assert ended_within(5, family)


def test_nothing_of_an_emulated_run_is_left_when_it_has_ended(predict: Predict) -> None:
    process, family = started(predict, FAMILY.replace("WAITS", "False"), "run", "--emulate", "h100")
    process.wait(60)
    assert ended_within(5, family)


@pytest.mark.parametrize("kill", [False, True])
def test_without_emulation_nothing_is_ended(predict: Predict, kill: bool) -> None:
    process, family = started(predict, FAMILY.replace("WAITS", str(kill)), "run", "--cpu")
    try:
        if kill:
            process.kill()
        process.wait(60)
        time.sleep(1)
        left = family if kill else family[1:]
        assert all(is_running(pid) for pid in left)
    finally:
        for pid in filter(is_running, family):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_prediction_that_is_stopped_has_the_exit_code_of_the_signal_and_no_messages(
    predict: Predict, number: signal.Signals, code: int
) -> None:
    predict.write("import time\nprint('started', flush=True)\ntime.sleep(100)\n")
    command = [OOMPH, "predict", "--gpu", "l4", *PYTHON, "--vary", "x=1,2,3", "train.py"]
    process = subprocess.Popen(command, cwd=predict.folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for line in process.stderr:
        if line == "started\n":
            break
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert "error:" not in said and "hint:" not in said, said


@pytest.mark.parametrize("forks", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_what_was_known_before_ctrl_c_is_printed(predict: Predict, forks: bool) -> None:
    python = sys.executable if forks else FORKING_PYTHON.emulated
    predict.write("""
        import os, pathlib, sys, time, torch
        torch.zeros(1 << 20, device="cuda")
        if sys.argv[1] == "x=2":
            pathlib.Path("pid").write_text(str(os.getpid()))
            time.sleep(100)
    """)
    command = [OOMPH, "predict", "--gpu", "l4", "-q", "--python", python, "--vary", "x=1,2", "train.py", "x=0"]
    process = subprocess.Popen(command, cwd=predict.folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
    pid = predict.folder / "pid"
    until(lambda: pid.exists() and pid.read_text(), "the second value did not start")
    time.sleep(2)  # for the other value
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "✓ FITS" in printed and "\n   1  " in printed and "\n   2  " not in printed
    assert ended_within(60, [int(pid.read_text())])


# The environment


SURROUNDINGS = """
    import json, os, pathlib, stat, sys
    entry = pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    parents = [entry, *entry.parents]
    print(json.dumps({
        "entry": str(entry),
        "modes": [stat.S_IMODE(path.stat().st_mode) for path in parents],
        "inside": sorted({stat.S_IMODE(path.stat().st_mode) for path in entry.rglob("*") if "__pycache__" not in str(path)}),
        "path": sys.path,
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    }))
"""


def test_code_that_processes_load_lies_where_only_its_user_can_write(predict: Predict) -> None:
    predict.write(SURROUNDINGS)
    mask = os.umask(0)
    try:
        done = predict.run("run", *PYTHON, "train.py")
    finally:
        os.umask(mask)
    seen = json.loads(done.stdout)
    assert seen["modes"][:3] == [0o700] * 3 and seen["inside"] == [0o600, 0o700]
    assert not any(mode & 0o002 for mode in seen["modes"]), "nobody else can recreate it below"
    entry = pathlib.Path(seen["entry"])
    assert not entry.exists() and stat.S_IMODE(entry.parent.parent.stat().st_mode) == 0o700, "it stays reserved"


def test_a_cache_that_others_can_write_is_refused(predict: Predict) -> None:
    predict.write("open('started', 'w')")
    shared = predict.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    done = predict.run("run", *PYTHON, "train.py", env={"OOMPH_CACHE_DIR": str(shared / "cache")})
    assert done.returncode == 2 and "is world-writable" in done.stderr and "OOMPH_CACHE_DIR" in done.stderr, done.stderr
    done = predict.run(
        "run", *PYTHON, "train.py", env={"HOME": "", "XDG_CACHE_HOME": "", "XDG_RUNTIME_DIR": "", "OOMPH_CACHE_DIR": ""}
    )
    assert done.returncode == 2 and "neither HOME nor XDG_CACHE_HOME is set" in done.stderr, done.stderr
    assert not (predict.folder / "started").exists()


def test_a_home_with_separators_in_its_name(predict: Predict) -> None:
    predict.write("print('ran')")
    environment = {"XDG_CACHE_HOME": "", "XDG_RUNTIME_DIR": "", "OOMPH_CACHE_DIR": ""}
    cache = pathlib.Path.home() / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        homes = {name: pathlib.Path(folder) / f"a{name}b" for name in ("\n", ";", "$LIB", ":")}
        for home in homes.values():
            home.mkdir()
        for name in ("\n", ";", "$LIB"):
            done = predict.run("run", *PYTHON, "train.py", env={**environment, "HOME": str(homes[name])})
            assert done.stdout.startswith("ran\n"), done.stderr
        done = predict.run("run", *PYTHON, "train.py", env={**environment, "HOME": str(homes[":"])})
        assert (done.returncode, done.stdout) == (2, "")
        assert "PYTHONPATH cannot contain a path with a colon" in done.stderr and "OOMPH_CACHE_DIR" in done.stderr
        other = {**environment, "HOME": str(homes[":"]), "XDG_RUNTIME_DIR": folder}
        assert predict.run("run", *PYTHON, "train.py", env=other).stdout.startswith("ran\n")


def test_a_process_looks_as_without_us(predict: Predict) -> None:
    program = predict.write("""
        import json, sys
        finders = [type(finder).__name__ for finder in sys.meta_path]
        print(json.dumps([sys.path, getattr(sys.modules.get("sitecustomize"), "__file__", None), sys.flags[:], "sitecustomize" in sys.modules]))
    """)
    for path in ("", str(predict.folder / "own")):
        env = {**os.environ, "PYTHONPATH": path}
        bare = subprocess.run([sys.executable, "train.py"], cwd=predict.folder, env=env, capture_output=True, text=True)
        assert predict.run("run", *PYTHON, program.name, env={"PYTHONPATH": path}).stdout == bare.stdout
        (predict.folder / "own").mkdir(exist_ok=True)
        (predict.folder / "own/sitecustomize.py").write_text("print('site')\n")


def test_a_failing_sitecustomize_of_the_site_fails_as_without_us(predict: Predict) -> None:
    predict.write("print('program')")
    (predict.folder / "sitecustomize.py").write_text("print('site')\n1 / 0\n")
    path = str(predict.folder)
    bare = subprocess.run(
        [sys.executable, "train.py"], cwd=path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    done = predict.run("run", *PYTHON, "train.py", env={"PYTHONPATH": path})
    assert (done.returncode, done.stdout) == (0, bare.stdout)
    assert bare.stderr and done.stderr.startswith(bare.stderr)


# Unusual torches


LOOKING = """
    import importlib, importlib.util, sys
    first, second = importlib.util.find_spec("torch"), importlib.util.find_spec("torch")
    assert "torch" not in sys.modules
    import torch
    print(torch.version, type(first.loader), type(torch.__loader__), torch.__spec__.loader is torch.__loader__, vars(torch.__loader__))
    print(importlib.reload(torch).version)
"""


@pytest.mark.parametrize("options", [("--cpu",), ("--emulate", "h100")])
@pytest.mark.parametrize(
    ("torch", "program"),
    [
        ("version = 'stub'\n", LOOKING),
        ("version = 'stub'\n_C = None\ndef __getattr__(name): raise RuntimeError(name)\n", LOOKING),
        ("raise ImportError('libcudart.so: cannot open shared object file')\n", "import torch"),
        ("import warnings\nwarnings.warn('old', stacklevel=2)\n1 / 0\n", "import torch"),
    ],
)
def test_an_unusual_torch_is_imported_as_without_us(predict: Predict, torch: str, program: str, options: tuple[str, ...]) -> None:
    predict.write(torch, "torch.py")
    predict.write(program)
    bare = subprocess.run([sys.executable, "train.py"], cwd=predict.folder, capture_output=True, text=True)
    done = predict.run("run", *options, *PYTHON, "train.py")
    assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout), done.stderr
    assert bare.stderr in done.stderr
    if not bare.returncode:
        assert "nothing was recorded" in done.stderr and "`torch` could not be prepared" in done.stderr


@pytest.mark.nightly
def test_torch_that_was_looked_for_first_is_recorded(predict: Predict) -> None:
    predict.write("""
        import importlib.util
        importlib.util.find_spec("torch")
        import torch
        torch.ones(1000)
    """)
    done = predict.run("run", "--cpu", *PYTHON, "train.py")
    assert "recorded in oomph-recording" in done.stderr, done.stderr


# What is said


def test_why_the_cpu_is_recorded_is_said_once(predict: Predict) -> None:
    predict.write("import torch; torch.ones(1000)")
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    done = predict.run("run", "--python", FORKING_PYTHON.cpu, "train.py", env=environment)
    assert done.stderr.count("no usable GPU") == 1 and "recording tensors on the CPU (--cpu" in done.stderr, done.stderr
    assert "no usable GPU" not in predict.run("run", "--cpu", "--python", FORKING_PYTHON.cpu, "train.py", env=environment).stderr


def test_an_interpreter_that_ignores_us_is_named_as_the_cause(predict: Predict) -> None:
    predict.write("print('hello')")
    done = predict.run("check", "--no-leaks", "--", sys.executable, "-I", "train.py")
    assert done.returncode == 2 and "nothing was recorded" in done.stderr and "-I, -E and -S" in done.stderr, done.stderr


def test_a_folder_that_cannot_be_written_is_named_as_the_cause(predict: Predict) -> None:
    predict.write("""
        import os
        os.rmdir("recording")
        open("recording", "w")
    """)
    done = predict.run("run", *PYTHON, "-o", "recording", "train.py")
    assert done.returncode == 0
    assert "nothing was recorded" in done.stderr and "`recording` cannot be written" in done.stderr, done.stderr
    assert "never used CUDA" not in done.stderr


def test_what_a_killed_oomph_has_left_is_swept_by_the_next(predict: Predict, tmp_path: pathlib.Path) -> None:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "oomph/run"
    predict.write(
        textwrap.dedent("""
        import json, os, time
        print(json.dumps([os.getpid()]), flush=True)
        time.sleep(100)
    """)
    )
    process, family = started(predict, (predict.folder / "train.py").read_text(), "run", "--emulate", "h100")
    (left,) = cache.glob(f"*-{process.pid}-*")
    process.kill()
    process.wait()
    assert ended_within(5, family) and left.exists()
    os.utime(left, (0, 0))
    predict.write("print('hello')")
    predict.run("run", *PYTHON, "train.py")
    assert not left.exists()
