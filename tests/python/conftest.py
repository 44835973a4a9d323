"""What the tests of programs share: the command, ways to run a program with it, and a program to record."""

import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass

import pytest

from forking import ONE_THREAD, ForkingPython
from schemas import parsed

# pytest-xdist sets it; what oomph prints to a pipe follows it.
os.environ.pop("COLUMNS", None)
# Programs of the tests are small, and the tests share the cores.
os.environ.update(ONE_THREAD)

ROOT = pathlib.Path(__file__).resolve().parents[2]
OOMPH = pathlib.Path(os.environ.get("OOMPH", ROOT / "target/debug/oomph")).resolve()
EMULATOR = pathlib.Path(os.environ.get("OOMPH_EMULATOR_LIB", OOMPH.parent / "liboomph_emulator.so")).resolve()
FIXTURES = ROOT / "fixtures"
FORKING_PYTHON = ForkingPython(EMULATOR)

# Who runs the tests in the background of a shell has Ctrl-C ignored, and programs inherit that: some tests send it to them.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nightly: a test that takes long and is not part of the gate (`.ci/run`)")
    config.addinivalue_line("markers", "long: a file that takes a minute or more, so that it has to begin early")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files that say they are long first, then those with most tests: a file runs in one process, and the last one alone."""
    tests_of = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.get_closest_marker("long") is None, -tests_of[item.path]))


@dataclass
class Result:
    answer: dict
    """The JSON."""
    said: str
    """Standard error: what the program prints, and what oomph tells of its run."""


class Predict:
    """Runs `oomph` on small programs in a folder of their own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def write(self, text: str, name: str = "train.py") -> pathlib.Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [OOMPH, *arguments],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", **(env or {})},
            capture_output=True,
            text=True,
            timeout=600,
        )

    def result(self, program: str, *options: str, steps: str = "3", arguments: tuple = ()) -> Result:
        """What a few steps of a program give that has to end well."""
        script = self.write(program, "program.py")
        options = ("--gpu", "h200", "--steps", steps, "--once", "--json", "--python", FORKING_PYTHON.emulated, *options)
        done = self.run("predict", *options, "--", str(script), *map(str, arguments))
        assert done.returncode == 0, done.stderr
        return Result(parsed("predict", done.stdout), done.stderr)

    def answer(self, program: str, *options: str, gpu: str = "h200", env: dict[str, str] | None = None) -> dict:
        """The JSON answer about a program that is expected to run."""
        self.write(program)
        done = self.run("predict", "--gpu", gpu, "--python", FORKING_PYTHON.emulated, "--json", *options, "train.py", env=env)
        assert done.returncode in (0, 1), done.stderr
        answer = parsed("predict", done.stdout)
        assert done.returncode == int(not answer["fits"])
        return answer


@pytest.fixture
def predict(tmp_path: pathlib.Path) -> Predict:
    return Predict(tmp_path)


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

    def heap(self, ending: str = "heap", rank: int = 0) -> dict:
        return json.loads((self.folder / f"rank{rank}.{ending}").read_text())

    def allocations(self, rank: int = 0) -> list[dict]:
        return [event for event in self.snapshot(rank)["device_traces"][0] if event["action"] == "alloc"]

    def report(self, *options: str) -> dict:
        done = subprocess.run([OOMPH, "report", "--json", *options, self.folder], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["inputs"][0]["devices"][0]

    def said(self, word: str) -> dict:
        line = next(line for line in self.done.stdout.splitlines() if line.startswith(word + " "))
        return json.loads(line.removeprefix(word))


@pytest.fixture
def run(predict):
    """Runs a program under `oomph run`; on an emulated GPU unless told otherwise.

    `fresh` starts a new interpreter, where it matters how a process begins, or what it has imported.
    """

    def run(
        program: str, *options: str, gpu: bool = True, fresh: bool = False, name: str = "train.py", env=None, arguments=()
    ) -> Recorded:
        predict.write(program, name)
        folder = predict.folder / "recording"
        card = ("--emulate", "h200") if gpu else ()
        python = sys.executable if fresh else FORKING_PYTHON.emulated if gpu else FORKING_PYTHON.cpu
        done = predict.run("run", *card, "--python", python, "-o", str(folder), "--force", *options, name, *arguments, env=env)
        return Recorded(done, folder)

    return run
