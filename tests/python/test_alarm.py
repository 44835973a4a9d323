"""What happens when memory grows step after step: the word on standard error, the recording, a command, an exception."""

import gc
import json
import os
import pathlib
import pickle
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch

import oomph
from conftest import MODEL, OOMPH

VARIABLES = r"""env | grep -E '^OOMPH_(RECORDING|RANK|DEVICE|STEP|BYTES_PER_STEP|ALLOCATED|PID|MESSAGE)=' >> said"""

GROWS = (
    MODEL
    + """
    import os, time
    kept = []
    def grow(steps, until="nothing", pause=0.03):
        for step in range(steps):
            train(1)
            kept.append(torch.empty(1 << 20, device=DEVICE))
            time.sleep(pause)
            if os.path.exists(until):
                break
"""
)


def variables(path: pathlib.Path) -> list[dict[str, str]]:
    """What each call of the command has said."""
    calls: list[dict[str, str]] = []
    for line in path.read_text().splitlines():
        name, value = line.removeprefix("OOMPH_").split("=", 1)
        if not calls or name in calls[-1]:
            calls.append({})
        calls[-1][name] = value
    return calls


# `oomph run`


def test_a_command_is_run_once_and_can_read_the_recording(run, tmp_path):
    report = f'{shlex.quote(str(OOMPH))} report "$OOMPH_RECORDING" > report; echo from the command'
    recorded = run(GROWS + "    grow(600, until='done')\n", "--on-leak", f"{VARIABLES}; {report}; touch done")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert len(recorded.steps()) < 600, "while the program ran"
    (told,) = variables(tmp_path / "said")
    grown = {"RANK": "0", "DEVICE": "0", "STEP": "9", "BYTES_PER_STEP": str(4 << 20)}
    assert told == {**told, **grown, "RECORDING": str(recorded.folder), "PID": str(recorded.json()["pid"])}
    assert int(told["ALLOCATED"]) == recorded.steps()[8]["devices"][0]["allocated"]
    assert told["MESSAGE"] in recorded.done.stderr and recorded.done.stderr.count("memory has grown") == 1
    text = (tmp_path / "report").read_text()
    assert "written on an alarm" in text and "4.00 MiB per step" in text
    assert "from the command" in recorded.done.stderr and "from the command" not in recorded.done.stdout


def test_a_program_that_ends_at_once_is_called_and_a_command_that_fails_and_hangs_hurts_nobody(run, tmp_path):
    program = (
        GROWS
        + """
    # The recorder's steps stay with it, so that nobody hears of them before the program ends.
    next(module for name, module in sys.modules.items() if name.endswith(".recording.files"))._FLUSH_INTERVAL_SECONDS = 600
    grow(12, pause=0)
    sys.exit(7)
"""
    )
    # Whoever reads our standard error, as we do here, would wait for a command that keeps it open.
    command = f"{VARIABLES}; no-such-command; echo $$ > pid; exec sleep 300 > /dev/null 2>&1"
    recorded = run(program, "--on-leak", command)
    try:
        said = recorded.done.stderr
        assert recorded.done.returncode == 7, said
        assert said.count("memory has grown 4.00 MiB per step") == 1
        assert "a recording so far" not in said, "it had ended"
        assert "no-such-command" in said and "is still running; not waiting for it" in said
        (told,) = variables(tmp_path / "said")
        assert (told["STEP"], told["PID"]) == ("9", str(recorded.json()["pid"]))
        assert not list(recorded.folder.glob("*.ask*"))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_an_exception_ends_the_program_when_the_recording_is_written(run):
    program = (
        GROWS
        + """
    try:
        grow(600)
    except RuntimeError as error:
        print("WRITTEN", open("recording/rank0.json").read())
        raise
"""
    )
    recorded = run(program, "--raise-on-leak")
    assert recorded.done.returncode == 1
    assert recorded.said("WRITTEN")["dumped"] == "alarm"
    said = recorded.done.stderr
    assert "optimizer.step()" in said.split("Traceback")[1], "out of the user's own line"
    assert "\noomph.MemoryGrows: memory has grown 4.00 MiB per step" in said and "during handling" not in said.lower()
    summary = recorded.json()
    # What was there before the exception explains more than what was left by it.
    assert (summary["ended"], summary["dumped"]) == ("failed", "alarm")
    assert summary["exception"].startswith("MemoryGrows: memory has grown")
    assert summary["steps"]["count"] == len(recorded.steps())
    assert recorded.report()["findings"][0]["kind"] == "leak"


def test_of_several_processes_only_the_one_that_grows_gets_the_exception(run, tmp_path):
    program = """
    import multiprocessing as mp, time, torch

    def work(number):
        model = torch.nn.Linear(8, 8, device=f"cuda:{number}")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []
        try:
            for _ in range(100 if number == 1 else 400):
                model(torch.ones(8, 8, device=f"cuda:{number}")).sum().backward()
                if number == 0:
                    kept.append(torch.empty(1 << 20, device="cuda:0"))
                optimizer.step()
                time.sleep(0.03)
            print("ends", number, flush=True)
        except RuntimeError as error:
            print("raised", number, type(error).__name__, flush=True)

    context = mp.get_context("fork")
    children = [context.Process(target=work, args=(number,)) for number in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
"""
    recorded = run(program, "--gpus", "2", "--raise-on-leak", "--on-leak", VARIABLES)
    assert recorded.done.returncode == 0, recorded.done.stderr
    said = recorded.done.stdout.splitlines()
    assert "raised 0 MemoryGrows" in said and "ends 1" in said
    (told,) = variables(tmp_path / "said")
    assert told["DEVICE"] == "0"
    assert recorded.json(int(told["RANK"]))["pid"] == int(told["PID"])


def test_each_device_is_called_and_a_recording_of_the_programs_own_hears_it(run, tmp_path):
    program = """
    import oomph, sys, time, torch
    kept, heard = [], []
    with oomph.record("recording", on_leak=heard.append, raise_on_leak=True) as rec:
        for step in range(600):
            for device in range(2):
                kept.append(torch.empty(1 << 20 + device, device=f"cuda:{device}"))
            time.sleep(0.03)
            try:
                rec.step()
            except oomph.MemoryGrows as error:
                print("caught", error.bytes_per_step, flush=True)
                break
    print("heard", [(type(leak) is oomph.Leak, leak.device, leak.bytes_per_step >> 20) for leak in heard])
"""
    recorded = run(program, "--gpus", "2", "--on-leak", VARIABLES)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "heard [(True, 0, 4), (True, 1, 8)]" in recorded.done.stdout
    assert recorded.done.stdout.count("caught") == 1
    assert [recorded.done.stderr.count(f"on device {device} of rank 0") for device in (0, 1)] == [1, 1]
    assert sorted(told["DEVICE"] for told in variables(tmp_path / "said")) == ["0", "1"]


def test_a_rank_that_another_oomph_runs_is_called_there(run, tmp_path):
    folder = tmp_path / "recording"
    folder.mkdir()
    steps = [{"step": step, "devices": [{"device": 0, "allocated": step << 24}]} for step in range(1, 20)]
    (folder / "rank0.steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    recorded = run("print('hello')\n", "--on-leak", "touch called", gpu=False, env={"RANK": "1"})
    assert "memory has grown" not in recorded.done.stderr
    assert not (tmp_path / "called").exists()


# `oomph.record()`


def record(path: str | pathlib.Path, **options) -> oomph.Recording:
    """Without who holds what, which is not asked here and takes most of the time of a dump."""
    gc.collect()  # what other tests have left is not freed in the middle of a step
    return oomph.record(path, device="cpu", holders=False, **options)


class Program:
    """Takes steps of an optimizer, and keeps a MiB of each."""

    def __init__(self) -> None:
        self.net = torch.nn.Linear(32, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.kept: list[torch.Tensor] = []
        self.steps = 0

    def train(self, steps: int, *, grows: bool = True) -> None:
        for _ in range(steps):
            self.net(torch.randn(8, 32)).sum().backward()
            if grows:
                self.kept.append(torch.zeros(1 << 18))
            self.steps += 1
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_a_function_hears_of_it_once_and_can_read_the_recording(tmp_path, capsys):
    heard, found = [], []

    def on_leak(leak: oomph.Leak) -> None:
        heard.append(leak)
        found.extend(finding.kind for finding in oomph.load(leak.folder).findings)

    with record(tmp_path / "r", on_leak=on_leak):
        Program().train(30)
    (leak,) = heard
    assert (leak.step, leak.bytes_per_step, leak.device, leak.rank) == (9, 1 << 20, 0, 0)
    assert leak.allocated >= 9 << 20 and leak.folder == str(tmp_path / "r")
    assert "leak" in found
    assert f"oomph: {leak.message}; writing a recording of the run so far to {leak.folder}\n" in capsys.readouterr().err
    with pytest.raises(AttributeError):
        leak.step = 10


def test_a_function_that_fails_hurts_nobody(tmp_path, capsys):
    program = Program()
    with record(tmp_path / "r", on_leak=lambda leak: 1 / 0):
        program.train(12)
    assert program.steps == 12
    said = capsys.readouterr().err
    assert said.count("oomph: `on_leak` failed: ZeroDivisionError") == 1 and "is missing" not in said


def test_a_command_of_the_program_has_the_same_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = f'{shlex.quote(str(OOMPH))} report "$OOMPH_RECORDING" > report'
    until_told = "for _ in $(seq 600); do test -e go && break; sleep 0.1; done"
    with record("r", on_leak=f"{VARIABLES}; {report}; {until_told}; touch done"):
        Program().train(12)
    assert not (tmp_path / "done").exists(), "nobody waits for it"
    (tmp_path / "go").touch()
    while not (tmp_path / "done").exists():
        time.sleep(0.05)
    (told,) = variables(tmp_path / "said")
    grown = {"RANK": "0", "DEVICE": "0", "STEP": "9", "BYTES_PER_STEP": str(1 << 20)}
    assert told == {**told, **grown, "RECORDING": str(tmp_path / "r"), "PID": str(os.getpid())}
    assert told["MESSAGE"].startswith("memory has grown 1.00 MiB per step") and int(told["ALLOCATED"]) >= 9 << 20
    assert "1.00 MiB per step" in (tmp_path / "report").read_text()


def test_a_command_that_fails_hurts_nobody(tmp_path):
    program = Program()
    with record(tmp_path / "r", on_leak="no-such-command 2> /dev/null"):
        program.train(12)
    assert program.steps == 12


def test_a_step_ends_with_the_exception_that_was_asked_for(tmp_path):
    program, heard = Program(), []
    with pytest.raises(oomph.MemoryGrows, match="memory has grown 1.00 MiB per step") as raised:
        with record(tmp_path / "r", on_leak=heard.append, raise_on_leak=True):
            program.train(30)
    assert (program.steps, len(heard)) == (9, 1)
    error = raised.value
    assert isinstance(error, RuntimeError) and error.leak == heard[0]
    assert (error.bytes_per_step, error.folder) == (1 << 20, str(tmp_path / "r"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    summary = json.loads((tmp_path / "r/rank0.json").read_text())
    assert (summary["ended"], summary["dumped"], summary["steps"]["count"]) == ("failed", "alarm", 9)
    assert "leak" in [finding.kind for finding in oomph.load(tmp_path / "r").findings]


def test_a_program_that_catches_it_goes_on_and_is_not_called_again(tmp_path):
    program = Program()
    with record(tmp_path / "r", raise_on_leak=True) as rec:
        with pytest.raises(oomph.MemoryGrows):
            program.train(30)
        assert rec._recorder is not None and rec._recorder.history.marked() == ""
        program.train(10)
    summary = json.loads((tmp_path / "r/rank0.json").read_text())
    assert (summary["ended"], summary["dumped"], summary["steps"]["count"]) == ("finished", "exit", 19)


def test_nothing_is_called_or_raised_without_growth_or_unless_asked_for(tmp_path):
    heard: list[oomph.Leak] = []
    with record(tmp_path / "r", on_leak=heard.append, raise_on_leak=True):
        Program().train(30, grows=False)
    with record(tmp_path / "s"):
        Program().train(30)
    assert heard == []


def test_a_recording_inside_of_another_is_called_as_long_as_it_lasts(tmp_path):
    first: list[oomph.Leak] = []
    second: list[oomph.Leak] = []
    with record(tmp_path / "r"):
        with record(tmp_path / "r", on_leak=first.append):
            pass
        with record(tmp_path / "r", on_leak=second.append):
            Program().train(30)
    assert (len(first), len(second)) == (0, 1)


def test_it_is_raised_although_nothing_can_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(oomph.MemoryGrows), record(tmp_path / "file/r", raise_on_leak=True):
        Program().train(30)
    assert "part of the recording is missing" in capsys.readouterr().err


def test_every_device_is_heard():
    from oomph.recording.api import _alarm
    from oomph.recording.files import Files

    heard, files = _alarm(), Files("r", is_fresh=False)
    leaks = []
    for step in range(20):
        rows = [{"device": device, "allocated": (device * step) << 20} for device in (0, 1, 2)]
        leaks += heard(rows, files)
    assert [(leak.device, leak.step) for leak in leaks] == [(1, 9), (2, 9)]
    assert leaks[0].message.endswith("on device 1")


def test_wrong_arguments_are_said_at_once():
    with pytest.raises(TypeError, match="a command or a function"):
        oomph.record(on_leak=3)


def test_the_exception_needs_no_torch():
    program = "import sys, oomph; assert issubclass(oomph.MemoryGrows, RuntimeError) and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
