"""The marker `gpu_memory`, with real pytest and real torch: on the CPU, and on an emulated GPU."""

import os
import subprocess

import pytest

# Before pytester's inner runs, which forget what they import: torch and its compiler cannot be imported twice.
import torch._dynamo  # noqa: F401

from conftest import FORKING_PYTHON, OOMPH, ROOT
from oomph.sizes import format_size, parse_size

pytest_plugins = ["pytester"]

TESTS = """
import pytest
import torch

kept = []

@pytest.mark.gpu_memory(limit="2MiB", leak=0)
def test_within():
    torch.ones(2**18, device=DEVICE).add(1)

@pytest.mark.gpu_memory(limit="2MiB")
def test_above():
    first = torch.ones(2**18, device=DEVICE)
    second = first + 1
    third = second * 2  # line 14

@pytest.mark.gpu_memory(leak="1KiB")
def test_leaves():
    kept.append(torch.ones(2**18, device=DEVICE))  # line 18

@pytest.mark.gpu_memory(leak=0)
def test_leaves_a_cycle():
    cycle = [torch.ones(2**18, device=DEVICE)]
    cycle.append(cycle)

@pytest.mark.gpu_memory(limit=0, leak=0)
def test_fails_itself():
    tensor = torch.ones(10, device=DEVICE)
    assert False, "the test's own failure"

def test_unmarked():
    kept.append(torch.ones(2**18, device=DEVICE))
"""

EXPECTED = [
    "*_ test_above _*",
    "the test held 3.00 MiB on {} at its peak, 1.00 MiB over the limit of 2.00 MiB:",
    "    1.00 MiB  1 block     test_memory.py:14 in test_above",
    "*_ test_leaves _*",
    "the test leaves 1.00 MiB on {}, 1023 KiB over the limit of 1.00 KiB:",
    "    1.00 MiB  1 block     test_memory.py:18 in test_leaves",
    "*the test's own failure*",
    "*3 failed, 3 passed*",
]

CACHE = os.path.expanduser("~/.cache/oomph")


@pytest.fixture
def marked(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider -p no:xdist")
    # pytester's home is below a folder that everybody can write to, where oomph keeps nothing.
    monkeypatch.setenv("OOMPH_CACHE_DIR", CACHE)
    return pytester


def test_the_peak_and_what_stays_are_measured_on_the_cpu(marked):
    marked.makepyfile(test_memory=TESTS.replace("DEVICE", '"cpu"'))
    expected = [line.format("the CPU").replace("[", "[[]") for line in EXPECTED]
    marked.runpytest_inprocess().stdout.fnmatch_lines(expected, consecutive=False)


def test_the_peak_and_what_stays_are_measured_on_a_gpu(marked):
    marked.makepyfile(test_memory=TESTS.replace("DEVICE", '"cuda"'))
    command = [OOMPH, "run", "--emulate", "h100", "--python", FORKING_PYTHON.emulated, "-m", "pytest", "test_memory.py"]
    done = subprocess.run(command, cwd=marked.path, capture_output=True, text=True, timeout=300)
    for line in EXPECTED[1:]:
        wanted = line.format("GPU 0").strip("*_ ")
        assert wanted in done.stdout + done.stderr, (line, done.stdout, done.stderr)


def test_memory_from_before_the_test_is_not_its_own(marked):
    marked.makepyfile("""
        import pytest, torch

        @pytest.fixture
        def big():
            return torch.ones(2**20)

        @pytest.mark.gpu_memory(limit="1MiB", leak="0B")
        def test_small(big):
            big[:1000].add(1)
    """)
    marked.runpytest_inprocess().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'2GiB'", "expected names, as in limit='2GiB'"),
        ("limit='2 XB'", "expected a size such as 2GiB, 512MB or bytes, found '2 XB'"),
        ("limit=-1", "expected a size such as 2GiB, 512MB or bytes, found -1"),
        ("limits=1", "expected `limit` or `leak`, found `limits`"),
        ("", 'expected `limit` or `leak`, as in limit="2GiB"'),
    ],
)
def test_wrong_arguments_are_an_error_at_collection(marked, arguments, said):
    marked.makepyfile(test_wrong=f"import pytest\n@pytest.mark.gpu_memory({arguments})\ndef test_it(): pass")
    done = marked.runpytest_inprocess()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: test_wrong.py::test_it: gpu_memory: {said}" in done.stderr.str()


def test_the_device_is_an_option(marked):
    marked.makepyfile(test_it="import pytest\n@pytest.mark.gpu_memory(leak=0)\ndef test_it(): pass")
    done = marked.runpytest_inprocess("-o", "oomph_device=cuda", "-rs")
    done.stdout.fnmatch_lines(["SKIPPED*oomph_device = cuda, but no GPU is available"])
    done = marked.runpytest_inprocess("-o", "oomph_device=tpu")
    assert "oomph_device: expected one of auto, cuda, cpu, found 'tpu'" in done.stderr.str()


def test_without_the_marker_torch_is_not_imported(marked):
    marked.makepyfile(test_it="import sys\ndef test_it(): assert 'torch' not in sys.modules")
    assert marked.runpytest_subprocess().ret == 0


def test_the_marker_is_known(marked):
    marked.makepyfile(test_it="import pytest\n@pytest.mark.gpu_memory(leak=0)\ndef test_it(): pass")
    marked.runpytest_inprocess("--strict-markers").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("512MB", 512_000_000), ("1.5 GiB", 3 << 29), ("0B", 0), (7, 7), ("12", 12), (" 1k ", 1024)],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("wrong", ["", "GiB", "-1", "1..5MiB", "1 e3", True, 1.5, None, -1, "١MiB"])
def test_invalid_sizes(wrong):
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(wrong)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (45 << 20, "45.0 MiB"), ((1 << 30) - 1, "1.00 GiB"), (-2048, "-2.00 KiB")],
)
def test_sizes_print_three_digits(size, text):
    assert format_size(size) == text


def test_the_example_of_the_documentation_passes(marked):
    section = (ROOT / "docs/how-to/pytest.md").read_text()
    marked.makepyfile(test_example=section.split("```")[1].partition("\n")[2])
    marked.runpytest_inprocess().assert_outcomes(passed=1)
