"""`pytest --oomph`, with real pytest and real torch: on the CPU, on an emulated GPU, and with pytest-xdist."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from conftest import FORKING_PYTHON, OOMPH

CACHE = os.path.expanduser("~/.cache/oomph")
FIXTURES = """
import pytest, torch

@pytest.fixture(scope="session")
def model():
    return torch.ones(4 << 18, device=DEVICE)

@pytest.fixture
def batch():
    yield torch.ones(2 << 18, device=DEVICE)
"""
TESTS = """
import unittest
import pytest, torch

CACHE = {}

def lookup(key):
    return CACHE.setdefault(key, torch.zeros(1 << 18, device=DEVICE))  # line 8

def test_train(model, batch):
    first = torch.ones(3 << 18, device=DEVICE)  # line 11
    second = first * 4

def test_eval(model):
    torch.ones(1 << 17, device=DEVICE)

@pytest.mark.parametrize("key", range(4))
def test_fill(key):
    lookup(key)

def test_fails():
    stays = torch.ones(7 << 18, device=DEVICE)  # line 22
    assert False

@pytest.mark.skip
def test_skipped(): ...

def test_without_tensors(): ...

@pytest.mark.gpu_memory(limit="5MiB", leak=0)
def test_marked(batch):
    tensor = torch.ones(5 << 18, device=DEVICE)  # line 32

def test_cycle():
    cycle = [torch.ones(1 << 17, device=DEVICE)]
    cycle.append(cycle)

class Case(unittest.TestCase):
    def setUp(self):
        self.first = torch.ones(6 << 18, device=DEVICE)

    def test_it(self):
        self.second = torch.ones(5 << 18, device=DEVICE)
"""
EXPECTED = """\
on {device}
      peak    fixtures  test
  11.0 MiB           -  test_all.py::Case::test_it
                        55% from test_all.py:40 in setUp
  6.00 MiB    2.00 MiB  test_all.py::test_train
                        50% from test_all.py:11 in test_train
  7.00 MiB           -  test_all.py::test_fails
                        100% from test_all.py:22 in test_fails
  5.00 MiB    2.00 MiB  test_all.py::test_marked
                        100% from test_all.py:32 in test_marked
         6 more tests need 1.00 MiB or less each
fixtures that tests share
  4.00 MiB  model (session)
left behind by tests
  4.00 MiB  test_all.py:8 in lookup
            by test_all.py::test_fill[0] and 3 more
            held by test_all.CACHE[0]
at the end, 4.00 MiB more is allocated than at the beginning
"""
PEAKS = {"test_train": 6 << 20, "test_eval": 1 << 19, "test_marked": 5 << 20, "test_it": 11 << 20, "test_fails": 7 << 20}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    def write(device: str) -> Path:
        (tmp_path / "conftest.py").write_text(FIXTURES.replace("DEVICE", repr(device)))
        (tmp_path / "test_all.py").write_text(TESTS.replace("DEVICE", repr(device)))
        return tmp_path

    return write


def run(folder: Path, *command: object) -> str:
    env = {**os.environ, "PYTEST_ADDOPTS": "-p no:cacheprovider -q --tb=no", "OOMPH_CACHE_DIR": CACHE}
    done = subprocess.run(map(str, command), cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def summary(output: str) -> str:
    found = re.search(r"=+ memory of tests \(oomph\) =+\n(.*?)^(=|\d+ passed)", output, re.DOTALL | re.MULTILINE)
    assert found, output
    return found[1]


def peaks(file: Path) -> dict[str, int]:
    cases = xml.etree.ElementTree.parse(file).iter("testcase")
    return {case.get("name"): int(each.get("value")) for case in cases for each in case.iter("property")}


def test_the_summary_on_the_cpu(project):
    folder = project("cpu")
    output = run(folder, FORKING_PYTHON.cpu, "-m", "pytest", "--oomph", "--oomph-top=4", "--junitxml=junit.xml")
    assert summary(output) == EXPECTED.format(device="the CPU")
    assert "1 failed, 10 passed, 1 skipped" in output
    found = peaks(folder / "junit.xml")
    assert {name: found[name] for name in PEAKS} == PEAKS
    assert "test_without_tensors" not in found


def test_the_summary_on_an_emulated_gpu(project):
    folder = project("cuda")
    command = (OOMPH, "run", "--emulate", "h100", "--python", FORKING_PYTHON.emulated, "-m", "pytest")
    output = run(folder, *command, "--oomph", "--oomph-top=4", "--junitxml=junit.xml")
    assert summary(output) == EXPECTED.format(device="GPU 0")
    found = peaks(folder / "junit.xml")
    assert {name: found[name] for name in PEAKS} == PEAKS


@pytest.mark.nightly
def test_workers_of_xdist_report_to_the_controller(project):
    output = run(project("cpu"), sys.executable, "-m", "pytest", "--oomph", "--oomph-top=4", "-n", "2")
    found = summary(output)
    # Which worker runs which test, and so which key comes first, is not known.
    assert re.sub(r"\[\d\]", "[0]", found) == EXPECTED.format(device="the CPU"), output


SMALL = """
import torch
def test_one():
    torch.ones(1 << 18)
def test_two():
    assert 0
def test_three():
    torch.ones(9 << 18)
"""


def test_a_session_that_ends_early_has_its_summary(tmp_path):
    (tmp_path / "test_small.py").write_text(SMALL)
    output = run(tmp_path, FORKING_PYTHON.cpu, "-m", "pytest", "--oomph", "-x")
    assert "  1.00 MiB           -  test_small.py::test_one\n" in summary(output)
    assert "test_three" not in summary(output)


def test_what_is_freed_again_is_not_left_behind(tmp_path):
    (tmp_path / "test_small.py").write_text(
        """
import torch
kept = []
def test_keeps(): kept.append(torch.ones(4 << 18))
def test_frees():
    kept.clear()
    torch.ones(1 << 18)
"""
    )
    found = summary(run(tmp_path, FORKING_PYTHON.cpu, "-m", "pytest", "--oomph"))
    assert "  4.00 MiB  test_small.py:4 in test_keeps\n            by test_small.py::test_keeps\n" in found
    assert "at the end" not in found and "held by" not in found


def test_errors_of_ours_do_not_reach_the_tests(tmp_path):
    (tmp_path / "test_small.py").write_text(SMALL)
    (tmp_path / "conftest.py").write_text(
        "import oomph.gauge\ndef fails(self): raise KeyError('x')\noomph.gauge.CpuGauge.peak = fails"
    )
    output = run(tmp_path, FORKING_PYTHON.cpu, "-m", "pytest", "--oomph")
    assert summary(output) == "memory is not measured: KeyError: 'x'\n"
    assert "1 failed, 2 passed" in output


@pytest.mark.parametrize(("tests", "said"), [("", "no test has allocated a tensor"), ("import torch", "is not available")])
def test_nothing_to_measure(tmp_path, tests, said):
    (tmp_path / "test_it.py").write_text(
        f"import sys\n{tests}\ndef test_it(): assert ('torch' in sys.modules) == bool({tests!r})"
    )
    python = FORKING_PYTHON.cpu if tests else sys.executable
    output = run(tmp_path, python, "-m", "pytest", "--oomph", "-o", "oomph_device=cuda")
    assert said.replace("is not", "but no GPU is") in summary(output)
    assert "1 passed" in output
