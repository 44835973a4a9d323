"""The recorder and the life of processes: signals, kills, forks and launchers."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from conftest import FORKING_PYTHON, MODEL, OOMPH

pytestmark = pytest.mark.long


def test_a_signal_asks_for_a_dump(run):
    program = (
        MODEL
        + """
    import os, signal, time
    train(3)
    os.kill(os.getpid(), signal.SIGUSR1)
    path = os.path.join("recording", "rank0.json")
    for _ in range(300):
        time.sleep(0.1)
        if os.path.exists(path) and "signal" in open(path).read():
            print("WROTE", open(path).read())
            break
    train(2)
"""
    )
    recorded = run(program)
    assert recorded.said("WROTE")["ended"] == "running"
    assert recorded.json()["ended"] == "finished"
    assert len(recorded.steps()) == 5


def test_a_signal_has_the_programs_own_thread_look_at_its_tensors(run):
    """In another thread PyTorch crashed now and then, while the program freed them."""
    recorded = run(
        MODEL
        + """
    import os, signal, threading
    from oomph.recording import recorder
    train(2)
    write, writers = recorder.active._write, []
    def noted(*args):
        writers.append(threading.get_ident() == threading.main_thread().ident)
        return write(*args)
    recorder.active._write = noted
    os.kill(os.getpid(), signal.SIGUSR1)
    while not writers:
        train(1)
    print("MAIN", str(all(writers)).lower())
"""
    )
    assert recorded.said("MAIN") is True, recorded.done.stderr


def _started(predict, program: str, python: str) -> tuple[subprocess.Popen, int]:
    """A program that runs on, and the number of its own process."""
    predict.write(program)
    command = [OOMPH, "run", "--emulate", "h200", "--python", python, "-o", "recording", "--force", "train.py"]
    process = subprocess.Popen(command, cwd=predict.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith("PID "), process.communicate()
    return process, int(line.split()[1])


ENDLESS = (
    MODEL
    + """
    import os, time
    train(3)
    print("PID", os.getpid(), flush=True)
    while True:
        train(1)
        time.sleep(0.01)
"""
)


@pytest.mark.parametrize(
    ("number", "ended", "code"),
    [(signal.SIGTERM, "killed", 143), pytest.param(signal.SIGINT, "failed", 130, marks=pytest.mark.nightly)],
)
def test_a_program_that_is_told_to_end_writes_first(predict, number, ended, code):
    process, _ = _started(predict, ENDLESS, sys.executable)
    process.send_signal(number)  # passed on
    out, said = process.communicate(timeout=60)
    summary = json.loads((predict.folder / "recording/rank0.json").read_text())
    assert summary["ended"] == ended, said
    assert "recorded in recording" in said and "steps (recorded)" in out
    assert process.returncode == code


COUNTING = """
    import signal, sys, time
    counts = {signal.SIGINT: 0, signal.SIGTERM: 0, signal.SIGHUP: 0, signal.SIGUSR2: 0}
    def count(number, _):
        counts[number] += 1
    for number in counts:
        signal.signal(number, count)
    print("ready", flush=True)
    while not any(counts.values()):
        time.sleep(0.01)
    time.sleep(0.5)
    print([number.name for number, count in counts.items() for _ in range(count)])
    sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
@pytest.mark.parametrize("is_for_group", [False, True])
def test_a_program_gets_each_signal_once(predict, number, is_for_group):
    predict.write(COUNTING)
    command = [OOMPH, "run", "--python", sys.executable, "train.py"]
    process = subprocess.Popen(command, cwd=predict.folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    if is_for_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert said.splitlines()[0] == str([number.name])
    assert process.returncode == 7


def test_a_kill_in_the_middle_of_a_dump_leaves_a_whole_file(predict):
    program = (
        MODEL
        + """
    import os, signal, threading, time
    train(40)
    def ask():
        while True:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)
    threading.Thread(target=ask, daemon=True).start()
    pickle = "recording/rank0.pickle"
    while not os.path.exists(pickle):
        train(1)
    print("PID", os.getpid(), flush=True)
    while True:
        train(1)
"""
    )
    for wait in (0.05, 0.23, 0.41):
        process, pid = _started(predict, program, FORKING_PYTHON.emulated)
        time.sleep(wait)
        os.kill(pid, signal.SIGKILL)
        out, said = process.communicate(timeout=60)
        assert process.returncode == 137, said
        # Whole: the report was made from it.
        assert "events, complete" in out, said
        assert "written" in out


def test_ranks_of_a_launcher_have_files_of_their_own(run):
    program = (
        MODEL.replace('"cuda"', "f\"cuda:{os.environ['RANK']}\"").replace("import sys", "import os, sys")
        + """
    import torch.distributed as dist
    dist.init_process_group("nccl")
    train(2 + dist.get_rank())
"""
    )
    recorded = run(program, "--gpus", "2", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert [recorded.json(rank)["rank"] for rank in (0, 1)] == [0, 1]
    assert [len(recorded.steps(rank)) for rank in (0, 1)] == [2, 3]
    for rank in (0, 1):
        assert (recorded.folder / f"rank{rank}.summary.arrow").read_bytes().startswith(b"ARROW1"), "for `oomph fleet`"


@pytest.mark.nightly
def test_a_launcher_may_start_oomph_for_each_rank(predict):
    predict.write(
        MODEL.replace('"cuda"', "f\"cuda:{os.environ['RANK']}\"").replace("import sys", "import os, sys") + "    train(3)\n"
    )
    oomph = [OOMPH, "run", "--emulate", "h200", "--gpus", "2", "--python", sys.executable, "-o", "recording", "train.py"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, *oomph], cwd=predict.folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        summary = json.loads((predict.folder / f"recording/rank{rank}.json").read_text())
        assert (summary["rank"], summary["steps"]["count"]) == (rank, 3)
    assert done.stdout.count("steps (recorded)") == 1, "one report"


def test_forked_processes_begin_recordings_of_their_own(run):
    program = """
    import multiprocessing as mp, torch

    def work(number):
        torch.zeros(1000 * (number + 1), device="cuda")

    context = mp.get_context("fork")
    children = [context.Process(target=work, args=(number,)) for number in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
"""
    recorded = run(program)
    sizes = {event["size"] for rank in (0, 1) for event in recorded.allocations(rank)}
    assert sizes == {4000, 8000}, recorded.done.stderr


def test_a_fork_does_not_write_into_its_parents_recording(run):
    program = (
        MODEL.replace('"cuda"', '"cpu"')
        + """
    import os
    train(3)
    if os.fork() == 0:
        train(9)
        os._exit(0)
    os.wait()
    train(2)
"""
    )
    # With more threads torch itself hangs in a forked process.
    recorded = run(program, "--cpu", gpu=False, env={"OMP_NUM_THREADS": "1"})
    assert [row["step"] for row in recorded.steps()] == [1, 2, 3, 4, 5]


def test_signals_that_the_program_handles_are_its_own(run):
    program = (
        MODEL.replace('"cuda"', '"cpu"')
        + """
    import os, signal, time
    train(1)
    signal.signal(signal.SIGTERM, lambda *_: print("saves a checkpoint"))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)
    print("goes on")
"""
    )
    recorded = run(program, "--cpu", gpu=False)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "saves a checkpoint\ngoes on\n" in recorded.done.stdout


def test_processes_without_a_launcher_do_not_overwrite_each_other(run):
    program = """
    import torch, torch.multiprocessing as mp

    def work(number):
        torch.zeros(1000 * (number + 1), device="cuda")

    if __name__ == "__main__":
        mp.spawn(work, nprocs=2)
"""
    recorded = run(program)
    assert recorded.done.returncode == 0, recorded.done.stderr
    sizes = {event["size"] for rank in (0, 1) for event in recorded.allocations(rank)}
    assert sizes == {4000, 8000}


@pytest.mark.nightly
def test_a_worker_writes_its_snapshot_before_what_may_take_long(run):
    """Whoever has started it may end it while it exits."""
    recorded = run(
        MODEL
        + """
    if __name__ == "__main__":
        import multiprocessing

        train(1)
        worker = multiprocessing.get_context("spawn").Process(target=train, args=(1,))
        worker.start()
        worker.join()
    """,
        fresh=True,
    )
    assert recorded.done.returncode == 0, recorded.done.stderr
    written = {
        name: (recorded.folder / name).stat().st_mtime_ns
        for rank in (0, 1)
        for name in (f"rank{rank}.pickle", f"rank{rank}.heap")
    }
    assert written["rank0.heap"] < written["rank0.pickle"], "the program itself has time"
    assert written["rank1.pickle"] < written["rank1.heap"]
