"""The recorder in real programs with real torch: on a pretended GPU, and on the CPU."""

import collections
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import pytest

from conftest import OOMPH

MODEL = """
    import sys, torch, torch.nn as nn, torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)
            self.register_buffer("mask", torch.ones(100, 100))

        def forward(self, x):
            h = F.gelu(self.up(self.norm(x)))
            return x + self.down(h)

    class Net(nn.Module):
        def __init__(self, width=128):
            super().__init__()
            self.blocks = nn.ModuleList(Block(width) for _ in range(2))
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    DEVICE = "cuda"
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(steps, batch=64):
        for _ in range(steps):
            x = torch.randn(batch, 128, device=DEVICE)
            y = torch.randint(0, 10, (batch,), device=DEVICE)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
"""

SUMS = """
    import json
    state = [value for of in optimizer.state.values() for value in of.values() if value.device.type == DEVICE]
    print("SUMS", json.dumps({
        "parameter": sum(p.nbytes for p in model.parameters()),
        "gradient": sum(p.nbytes for p in model.parameters()),
        "buffer": sum(b.nbytes for b in model.buffers()),
        "optimizer": sum(value.nbytes for value in state),
    }))
"""


class Recorded:
    """A program that `oomph run` has run."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: pathlib.Path) -> None:
        self.done = done
        self.folder = folder

    def json(self, rank: int = 0) -> dict:
        return json.loads((self.folder / f"rank{rank}.json").read_text())

    def steps(self, rank: int = 0) -> list[dict]:
        return [json.loads(line) for line in (self.folder / f"rank{rank}.steps.jsonl").read_text().splitlines()]

    def snapshot(self, rank: int = 0) -> dict:
        with open(self.folder / f"rank{rank}.pickle", "rb") as file:
            return pickle.load(file)

    def allocations(self, rank: int = 0) -> list[dict]:
        return [event for event in self.snapshot(rank)["device_traces"][0] if event["action"] == "alloc"]

    def report(self, *options: str) -> dict:
        done = subprocess.run(
            [OOMPH, "report", "--json", *options, self.folder], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)["inputs"][0]["devices"][0]

    def said(self, word: str) -> dict:
        line = next(line for line in self.done.stdout.splitlines() if line.startswith(word + " "))
        return json.loads(line.removeprefix(word))


@pytest.fixture
def run(predict):
    """Runs a program under `oomph run`; on a pretended GPU unless told otherwise."""

    def run(program: str, *options: str, gpu: bool = True, name: str = "train.py", env=None, arguments=()) -> Recorded:
        predict.write(program, name)
        folder = predict.folder / "recording"
        card = ("--pretend", "h200") if gpu else ()
        done = predict.run("run", *card, "--python", sys.executable, "-o", str(folder), *options, name, *arguments, env=env)
        return Recorded(done, folder)

    return run


def test_categories_are_the_programs_own_sums(run):
    recorded = run(MODEL + "    train(5)\n" + SUMS)
    assert recorded.done.returncode == 0, recorded.done.stderr
    report = recorded.report()
    sums = recorded.said("SUMS")
    assert {name: report["categories"][name] for name in sums} == sums
    assert report["steps"] == {**report["steps"], "count": 5, "source": "recorded"}
    assert len(recorded.steps()) == 5


def test_labels_name_each_tensor(run):
    recorded = run(MODEL + "    train(3)\n")
    labels = json.loads((recorded.folder / "rank0.labels").read_text())
    names = collections.defaultdict(set)
    for category, name, model in labels["tensors"]:
        names[category].add((name, model))
    assert ("blocks.1.down.weight", "Net") in names["parameter"]
    assert names["gradient"] == names["parameter"]
    assert ("blocks.0.norm.bias.exp_avg_sq", "Net") in names["optimizer"]
    assert names["buffer"] == {("blocks.0.mask", "Net"), ("blocks.1.mask", "Net")}
    assert names["input"] == {("x", "Net")}


def test_every_block_of_a_pass_has_its_module_and_those_of_backward_a_line(run):
    recorded = run(MODEL + "    train(12)\n")
    report = recorded.report("--at", "peak", "--by", "module", "--top", "50")
    modules = {group.get("module") for group in report["live"]["groups"]}
    assert {"Net.blocks.0.up", "Net.blocks.1.down", "Net.head"} <= modules
    # Steps of a steady loop are not all followed through backward; the report knows their modules all the same.
    followed = {event["user_metadata"] for event in recorded.allocations() if event["user_metadata"].startswith("backward ")}
    assert len(followed) >= 8
    nameless = [event for event in recorded.allocations() if event["user_metadata"] == "backward"]
    assert nameless
    lines = recorded.report("--at", "peak", "--by", "site", "--top", "50")["live"]["groups"]
    in_backward = [group for group in lines if group.get("origin") == "backward"]
    assert in_backward and all(group["site"]["line"] for group in in_backward)


def test_the_recorder_does_not_change_what_the_program_asks_for(run, predict):
    program = MODEL + """
    from torch.utils.checkpoint import checkpoint
    if len(sys.argv) > 1:
        torch.cuda.memory._set_memory_metadata("mine")
    model.blocks[0].register_forward_hook(lambda module, given, result: None)
    train(3)
    x = torch.randn(64, 128, device="cuda", requires_grad=True)
    checkpoint(model.blocks[1], x, use_reentrant=False).sum().backward()
"""
    recorded = run(program)
    assert recorded.done.returncode == 0, recorded.done.stderr
    # A program that marks its own events is not followed through its modules.
    plain = run(program, arguments=("mine",))
    assert {event["user_metadata"] for event in plain.allocations()} <= {"", "mine"}
    assert [event["size"] for event in plain.allocations()] == [event["size"] for event in recorded.allocations()]


def test_an_allocation_that_fails_is_explained(run):
    recorded = run(MODEL + "    train(3)\n    train(1, batch=400_000)\n", "--gpu-memory", "2GiB")
    assert recorded.done.returncode == 1
    # The exception that the user sees is PyTorch's own, from the user's own line.
    assert "OutOfMemoryError: CUDA out of memory" in recorded.done.stderr
    assert "During handling" not in recorded.done.stderr
    run_json = recorded.json()
    assert (run_json["ended"], run_json["dumped"]) == ("failed", "oom")
    assert run_json["oom"]["requested"] > 100 << 20
    assert run_json["oom"]["total"] == 2 << 30
    finding = recorded.report()["findings"][0]
    assert (finding["kind"], finding["cause"]) == ("oom", "capacity")
    assert recorded.report()["ooms"] >= 1


def test_a_program_that_catches_a_failure_goes_on(run):
    program = MODEL + """
    for batch in (400_000, 300_000, 64):
        try:
            train(1, batch=batch)
            print("fits", batch)
        except torch.OutOfMemoryError:
            print("too large", batch)
            optimizer.zero_grad()
"""
    recorded = run(program, "--gpu-memory", "2GiB")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "fits 64" in recorded.done.stdout
    assert recorded.json()["ended"] == "finished"
    assert recorded.report()["ooms"] >= 2


def test_the_users_exception_and_exit_code_stay(run):
    recorded = run(MODEL + "    train(2)\n    raise KeyError('mine')\n")
    assert recorded.done.returncode == 1
    assert "KeyError: 'mine'" in recorded.done.stderr
    assert recorded.json()["exception"] == "KeyError: 'mine'"
    assert run(MODEL + "    train(2)\n    sys.exit(7)\n").done.returncode == 7


def test_a_recording_that_cannot_be_written_is_said_and_hurts_nobody(run):
    program = MODEL + """
    import os, shutil
    train(2)
    shutil.rmtree("recording")
    open("recording", "w").close()
    train(2)
    print("the program ends well")
    raise ValueError("mine")
"""
    recorded = run(program)
    assert recorded.done.returncode == 1
    assert "the program ends well" in recorded.done.stdout
    assert "ValueError: mine" in recorded.done.stderr
    assert "oomph: part of the recording is missing" in recorded.done.stderr


def test_a_signal_asks_for_a_dump(run):
    program = MODEL + """
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
    recorded = run(program)
    assert recorded.said("WROTE")["ended"] == "running"
    assert recorded.json()["ended"] == "finished"
    assert len(recorded.steps()) == 5


def _started(run, predict, program: str) -> tuple[subprocess.Popen, int]:
    """A program that runs on, and the number of its own process."""
    predict.write(program)
    command = [OOMPH, "run", "--pretend", "h200", "--python", sys.executable, "-o", "recording", "train.py"]
    process = subprocess.Popen(command, cwd=predict.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith("PID "), process.communicate()
    return process, int(line.split()[1])


ENDLESS = MODEL + """
    import os, time
    train(3)
    print("PID", os.getpid(), flush=True)
    while True:
        train(1)
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("number", "ended", "code"), [(signal.SIGTERM, "killed", 143), (signal.SIGINT, "failed", 130)])
def test_a_program_that_is_told_to_end_writes_first(run, predict, number, ended, code):
    process, pid = _started(run, predict, ENDLESS)
    if number == signal.SIGTERM:
        process.send_signal(number)  # passed on
    else:
        # The terminal sends it to both.
        os.kill(pid, number)
        process.send_signal(number)
    out, said = process.communicate(timeout=60)
    summary = json.loads((predict.folder / "recording/rank0.json").read_text())
    assert summary["ended"] == ended, said
    assert "recorded in recording" in said and "steps (recorded)" in out
    assert process.returncode == code


def test_a_kill_in_the_middle_of_a_dump_leaves_a_whole_file(run, predict):
    program = MODEL + """
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
    for wait in (0.05, 0.23, 0.41):
        process, pid = _started(run, predict, program)
        time.sleep(wait)
        os.kill(pid, signal.SIGKILL)
        out, said = process.communicate(timeout=60)
        assert process.returncode == 137, said
        # Whole: the report was made from it.
        assert "events, complete" in out, said
        assert "written" in out


def test_an_alarm_is_raised_while_memory_grows(run):
    program = MODEL + """
    import os, time
    kept = []
    path = os.path.join("recording", "rank0.json")
    for step in range(400):
        train(1)
        kept.append(torch.empty(1 << 20, device="cuda"))
        time.sleep(0.05)
        if os.path.exists(path) and '"alarm"' in open(path).read():
            print("written at step", step)
            break
"""
    recorded = run(program)
    assert "memory grows 4.00 MiB a step" in recorded.done.stderr
    assert "written at step" in recorded.done.stdout
    assert recorded.done.stderr.count("memory grows") == 1
    assert recorded.report()["findings"][0]["kind"] == "leak"


def test_ranks_of_a_launcher_have_files_of_their_own(run):
    program = MODEL.replace('"cuda"', 'f"cuda:{os.environ[\'RANK\']}"').replace("import sys", "import os, sys") + """
    import torch.distributed as dist
    dist.init_process_group("nccl")
    train(2 + dist.get_rank())
"""
    recorded = run(program, "--gpus", "2", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert [recorded.json(rank)["rank"] for rank in (0, 1)] == [0, 1]
    assert [len(recorded.steps(rank)) for rank in (0, 1)] == [2, 3]


def test_a_launcher_may_start_oomph_for_each_rank(predict):
    predict.write(MODEL.replace('"cuda"', 'f"cuda:{os.environ[\'RANK\']}"').replace("import sys", "import os, sys") + "    train(3)\n")
    oomph = [OOMPH, "run", "--pretend", "h200", "--gpus", "2", "--python", sys.executable, "-o", "recording", "train.py"]
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
    program = MODEL.replace('"cuda"', '"cpu"') + """
    import os
    train(3)
    if os.fork() == 0:
        train(9)
        os._exit(0)
    os.wait()
    train(2)
"""
    # With more threads torch itself hangs in a forked process.
    recorded = run(program, "--cpu", gpu=False, env={"OMP_NUM_THREADS": "1"})
    assert [row["step"] for row in recorded.steps()] == [1, 2, 3, 4, 5]


def test_signals_that_the_program_handles_are_its_own(run):
    program = MODEL.replace('"cuda"', '"cpu"') + """
    import os, signal, time
    train(1)
    signal.signal(signal.SIGTERM, lambda *_: print("saves a checkpoint"))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)
    print("goes on")
"""
    recorded = run(program, "--cpu", gpu=False)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "saves a checkpoint\ngoes on\n" in recorded.done.stdout


def test_odd_tensors_and_modules_cost_their_labels_alone(run):
    program = MODEL + """
    class Odd(nn.Module):
        def named_parameters(self, *args, **kwargs):
            raise RuntimeError("mine")

    kept = [nn.LazyLinear(3, device="cuda"), Odd(), nn.Linear(2, 2, device="meta")]
    kept[1].register_buffer("sparse", torch.eye(3).to_sparse_csr().cuda())
    train(3)
""" + SUMS
    recorded = run(program)
    assert "is missing" not in recorded.done.stderr
    sums = recorded.said("SUMS")
    categories = recorded.report()["categories"]
    assert {name: categories[name] for name in ("parameter", "gradient", "optimizer")} == {
        name: sums[name] for name in ("parameter", "gradient", "optimizer")
    }


def test_modules_that_come_later_have_their_names(run):
    program = """
    import torch, torch.nn as nn

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(64, 32).cuda()
            width = self.backbone(torch.zeros(1, 64, device="cuda")).shape[1]
            self.head = nn.Linear(width, 8).cuda()

        def forward(self, x):
            return self.head(self.backbone(x))

    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 64, device="cuda")).sum().backward()
        optimizer.step()
"""
    recorded = run(program)
    labels = json.loads((recorded.folder / "rank0.labels").read_text())
    assert "Detector.head" in labels["modules"]
    assert ["gradient", "head.weight", "Detector"] in labels["tensors"]


def test_steps_go_on_with_the_next_optimizer(run):
    program = MODEL + """
    train(4)
    del optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(3)
"""
    assert len(run(program).steps()) == 7


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


def test_the_history_is_bounded(run):
    recorded = run(MODEL + "    train(20)\n" + SUMS, "--max-events", "500")
    report = recorded.report()
    assert report["events"] == 500
    assert report["history"] == "truncated"
    # Marks are counted from the end, so what is left of the history has its steps and labels.
    assert 1 <= report["steps"]["count"] < 20
    assert report["categories"]["parameter"] == recorded.said("SUMS")["parameter"]


def test_a_leak_on_a_laptop(run):
    program = MODEL.replace('"cuda"', '"cpu"') + """
    kept = []
    for _ in range(12):
        train(1)
        kept.append(torch.randn(64, 128) * 2)
""" + SUMS
    recorded = run(program, "--cpu", gpu=False)
    assert recorded.done.returncode == 0, recorded.done.stderr
    report = recorded.report()
    assert report["kind"] == "cpu"
    finding = report["findings"][0]
    line = next(n for n, text in enumerate((recorded.folder.parent / "train.py").read_text().splitlines(), 1) if "kept.append" in text)
    assert (finding["kind"], finding["site"]["line"]) == ("leak", line)
    sums = recorded.said("SUMS")
    assert {name: report["categories"][name] for name in sums} == sums


def test_a_program_without_torch_is_left_alone(run):
    recorded = run("print('hello')\n", gpu=False)
    assert recorded.done.returncode == 0
    assert "hello" in recorded.done.stdout
    assert "the program never used CUDA" in recorded.done.stderr
