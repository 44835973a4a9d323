"""Programs that `oomph lint --fix` changes run as before: each is executed before and after."""

import pathlib
import subprocess

import pytest

from conftest import FORKING_PYTHON, OOMPH

LOOP = """
    right = 0
    for x, y in loader:
{body}        right += (model(x).argmax(1) == y).sum().item()
    return right
"""

SETUP = """
import torch as framework
framework.manual_seed(0)
model = framework.nn.Linear(4, 2)
loader = [(framework.ones(3, 4), framework.zeros(3, dtype=framework.long))] * 2
"""

IMPORT_INSIDE = (
    "import os\n\ndef evaluate(model, loader):\n    import torch\n    assert torch"
    + LOOP.format(body="")
    + SETUP
    + "print(evaluate(model, loader))\n"
)

HELPER_DIFFERENTIATES = (
    "import torch\n\ndef adapt(model, x):\n    model(x).sum().backward()\n\ndef evaluate(model, loader):"
    + LOOP.format(body="        adapt(model, x)\n")
    + SETUP
    + "print(evaluate(model, loader), model.weight.grad)\n"
)

ASYNC = (
    "import asyncio\nimport inspect\nimport torch\n\nasync def evaluate(model, loader):"
    + LOOP.format(body="")
    + SETUP
    + "print(asyncio.run(evaluate(model, loader)), inspect.iscoroutinefunction(evaluate))\n"
)

STATIC_METHOD = (
    "import torch\n\nclass Evaluation:\n    @staticmethod\n    def evaluate(model, loader):"
    + LOOP.format(body="").replace("\n    ", "\n        ")
    + SETUP
    + "print(Evaluation().evaluate(model, loader))\n"
)

# The caller differentiates what the function gives back.
LOSSES_RETURNED = (
    """
import torch
import torch.nn.functional as F

def train(model, loader):
    losses = []
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        losses.append(loss)
        loss.backward(retain_graph=True)
    return losses
"""
    + SETUP
    + "sum(train(model, loader)).backward()\nprint(model.weight.grad)\n"
)

# An optimizer moves parameters whose gradient is zero, and skips those that have none.
ZEROED_IN_PLACE = (
    """
import torch

def train(model, loader, opt):
    for x, y in loader:
        model(x).sum().backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
    opt.step()
"""
    + SETUP
    + "train(model, loader, framework.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))\nprint(model.weight)\n"
)

NUMBERS_ONLY = (
    """
import torch
import torch.nn.functional as F

def train(model, loader, opt):
    losses = []
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        losses.append(loss)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return float(sum(losses)) / len(losses)
"""
    + SETUP
    + "print(train(model, loader, framework.optim.SGD(model.parameters(), lr=0.1)), model.weight)\n"
)


def run(program: pathlib.Path) -> str:
    command = [FORKING_PYTHON.cpu, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fix(program: pathlib.Path, *options: str) -> None:
    done = subprocess.run([OOMPH, "lint", "--fix", *options, program], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr


@pytest.mark.parametrize("options", [(), ("--unsafe-fixes",)], ids=["safe", "all"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(IMPORT_INSIDE, id="torch is imported inside of the function"),
        pytest.param(HELPER_DIFFERENTIATES, id="a helper calls backward"),
        pytest.param(ASYNC, id="the function is async"),
        pytest.param(STATIC_METHOD, id="the function is a static method"),
        pytest.param(NUMBERS_ONLY, id="only numbers leave the function"),
    ],
)
def test_a_fixed_program_prints_what_it_did_before(tmp_path, text, options):
    program = tmp_path / "program.py"
    program.write_text(text)
    before = run(program)
    fix(program, *options)
    assert run(program) == before


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(LOSSES_RETURNED, id="the caller differentiates the losses"),
        pytest.param(ZEROED_IN_PLACE, id="momentum moves parameters with gradients of zeros"),
    ],
)
def test_what_an_unsafe_fix_would_change_stays_without_the_option(tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)
    before = run(program)
    fix(program)
    assert run(program) == before
    fix(program, "--unsafe-fixes")
    assert program.read_text() != text, "there is a fix"


def test_a_safe_fix_is_applied(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(NUMBERS_ONLY)
    fix(program)
    assert program.read_text() == NUMBERS_ONLY.replace("append(loss)", "append(loss.detach())")
