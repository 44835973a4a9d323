"""`oomph check` on programs that really run, without a GPU: the same bytes every time, and what moved is named."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from conftest import FORKING_PYTHON, OOMPH, ROOT, Predict

TRAIN = """
    import torch


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(256))

        def forward(self, x):
            x = x * self.weight
            for _ in range(8):
                x = x.exp()
            return x.sum()


    model = Net().cuda()
    for step in range(6):
        model(torch.zeros(4000, 256, device="cuda")).backward()
        model.weight.grad = None
"""
LEAKING = TRAIN + "        kept = [*kept, torch.zeros(1 << 20, device='cuda')] if step else []\n"
CHECK = ("check", "--emulate", "a10g")
FRESH = ("--", sys.executable, "train.py")
RUNS = int(os.environ.get("OOMPH_CHECK_RUNS", "3"))


def command() -> tuple[str, ...]:
    return "--", FORKING_PYTHON.emulated, "train.py"


@pytest.mark.nightly
def test_every_run_gives_the_same_verdict_bytes_and_baseline(tmp_path: pathlib.Path) -> None:
    def one(run: int) -> tuple[str, str]:
        # Every run has a folder of its own: nothing in the answer may hang on where it lies.
        predict = Predict(tmp_path / f"run{run}")
        predict.folder.mkdir()
        predict.write(TRAIN)
        limits = ("--max-peak", "1GiB", "--max-reserved", "1GiB", "--max-fragmentation", "90%", "--no-leaks", "--max-growth", "0")
        done = predict.run(
            *CHECK, *limits, "--baseline", "memory.json", "--update", "--json", *FRESH, env={"PYTHONHASHSEED": str(run)}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, (predict.folder / "memory.json").read_text()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(one, range(RUNS)))
    assert len(answers) == RUNS and len(set(answers)) == 1
    (device,) = json.loads(answers[0][0])["devices"]
    # Each exponential stays for its backward pass.
    assert device["peak_allocated"] > 8 * 4000 * 256 * 4
    assert device["replayed_reserved"] and device["growth_per_step"] == 0
    baseline = json.loads(answers[0][1])
    assert baseline["devices"][0]["peak_allocated"] == device["peak_allocated"]
    assert {site["file"] for site in baseline["devices"][0]["sites"]} == {"train.py"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Predict:
    """A program with its baseline."""
    predict = Predict(tmp_path_factory.mktemp("project"))
    predict.write(TRAIN)
    done = predict.run(*CHECK, "--baseline", "memory.json", "--update", *command())
    assert done.returncode == 0, done.stderr
    return predict


def test_two_percent_more_activations_fail_and_the_line_is_named(project: Predict) -> None:
    # Two lines of comment in front of everything: the lines have moved as well.
    project.write("# one\n# two\n" + textwrap.dedent(TRAIN.replace("4000", "4080")))
    options = (
        "--baseline",
        "memory.json",
        "--format",
        "text",
        "--format",
        "github",
        "--format",
        "junit=memory.xml",
        "--format",
        "json=memory.out",
    )
    done = project.run(*CHECK, *options, "--python", FORKING_PYTHON.emulated, "train.py")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("✗ over the budget: 1 of 1 limit exceeded")
    assert "+2%, tolerance 1%" in " ".join(done.stdout.split())
    assert "train.py:15  forward (was line 13)" in done.stdout
    (annotation,) = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert annotation.startswith("::error file=train.py,line=15,title=oomph check%3A baseline")
    (suite,) = ElementTree.parse(project.folder / "memory.xml").getroot()
    (case,) = suite
    assert case.get("name") == "baseline" and "train.py:15" in (case.findtext("failure") or "")
    answer = json.loads((project.folder / "memory.out").read_text())
    moved = answer["devices"][0]["limits"][0]["baseline"]
    assert moved["sites"][0]["site"] == {"file": "train.py", "line": 15, "function": "forward"}
    assert moved["categories"]["activation"]["after"] > moved["categories"]["activation"]["before"]


def test_growth_is_measured_and_few_steps_are_not_enough(predict: Predict) -> None:
    predict.write(LEAKING.replace("range(6)", "range(8)"))
    done = predict.run(*CHECK, "-o", "recording", "--max-growth", "4MiB", "--no-leaks", *command())
    assert done.returncode == 1, done.stderr
    assert "leak at train.py:21: 4.00 MiB per step" in done.stdout and "✓ max-growth" in done.stdout
    assert "next: oomph report recording" in done.stdout
    done = predict.run("check", "recording", "--max-growth", "4095KiB", "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["devices"][0]["growth_per_step"] == 4 << 20
    predict.write(LEAKING.replace("range(6)", "range(3)"))
    done = predict.run(*CHECK, "--max-growth", "1GiB", *command())
    assert done.returncode == 2 and "too few to tell growth" in done.stdout.replace("\n                       ", " ")


def test_out_of_memory_is_over_the_budget_and_another_failure_is_not_measured(predict: Predict) -> None:
    predict.write("import torch\nx = torch.zeros(1 << 20, device='cuda')\ny = torch.zeros(1 << 34, device='cuda')\n")
    done = predict.run(*CHECK, "--max-peak", "1TiB", *command())
    assert done.returncode == 1, done.stderr
    assert "ran out of memory on GPU 0" in done.stdout
    predict.write("import sys, torch\nx = torch.zeros(1 << 20, device='cuda')\nsys.exit(3)\n")
    done = predict.run(*CHECK, "--max-peak", "1TiB", *command())
    assert (done.returncode, done.stdout) == (2, "")
    assert "failed, so its memory could not be measured" in done.stderr and "exit status: 3" in done.stderr


def test_the_workflow_of_the_documentation_runs(project: Predict) -> None:
    text = (ROOT / "docs" / "how-to" / "gate-ci.md").read_text()
    workflow = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    runs = [step["run"] for step in workflow["jobs"]["memory"]["steps"] if "run" in step]
    install, check = runs
    # Nothing is installed here: `oomph` is the one under test, `python` the one with torch.
    assert shlex.split(install)[:2] == ["pip", "install"]
    tools = project.folder / "bin"
    tools.mkdir()
    for name, program in (("oomph", OOMPH), ("python", FORKING_PYTHON.emulated)):
        (tools / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        (tools / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    for rows, code in (("4000", 0), ("4400", 1)):
        project.write(TRAIN.replace("4000", rows))
        done = subprocess.run(["bash", "-ec", check], cwd=project.folder, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("::error file=train.py,line=13," in done.stdout) == bool(code)
        assert ElementTree.parse(project.folder / "memory.xml").getroot().get("failures") == str(code)
