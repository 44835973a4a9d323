"""Field trials that CI runs: programs that show harm, bare and recorded on the emulated GPU in strict mode."""

import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys
from types import ModuleType

import pytest

from conftest import OOMPH, ROOT

pytestmark = pytest.mark.long

HARNESS = ROOT / "field/run.py"


def field(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, HARNESS, "--oomph", OOMPH, "--python", sys.executable, *options]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    "name",
    [
        "mnist-workers",
        pytest.param("fork-exit-after-cuda", marks=pytest.mark.nightly),
        "options-like-ours",
        pytest.param("patches-impl-early", marks=pytest.mark.nightly),
        pytest.param("exits-chained", marks=pytest.mark.nightly),
        "default-signals-term",
        pytest.param("memory-history-guide", marks=pytest.mark.nightly),
        pytest.param("working-directory", marks=pytest.mark.nightly),
    ],
)
def test_a_recorded_program_behaves_as_it_does_bare(name: str, tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.json"
    done = field("--only", name, "--json", results)
    (result,) = json.loads(results.read_text())
    assert result["verdict"] == "same", done.stdout
    assert done.returncode == 0


@pytest.mark.nightly
def test_a_program_that_is_attached_to_behaves_as_it_does_alone(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.json"
    done = field("--attach", "--only", "cuda-graphs", "--json", results)
    (result,) = json.loads(results.read_text())
    assert result["verdict"] == "same", done.stdout
    assert any("recorded" in run["own"] for run in result["recorded"]), done.stdout


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HARNESS.parent)
    spec = importlib.util.spec_from_file_location("field_run", HARNESS)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "field_run", module)
    spec.loader.exec_module(module)
    return module


BARE = {
    "exit": 0,
    "stdout": "loss 1\n",
    "stderr": "",
    "files": {"model.pt": "0o644 abc"},
    "memory": [{"allocations": 100, "requested": 1000, "peak_allocated": 500, "peak_reserved": 2048}],
    "ranks": 1,
    "steps": [],
    "seconds": 1.0,
    "ending": 0.1,
    "own": "",
    "last_lines": "",
}
MORE_MEMORY = [{"allocations": 103, "requested": 1000, "peak_allocated": 500, "peak_reserved": 2048}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exit": 1}, "exit code: 0 bare, 1 recorded"),
        ({"stdout": "loss 2\n"}, "standard output: \n    -loss 1\n    +loss 2"),
        ({"stderr": "Warning\n"}, "standard error: \n    +Warning"),
        ({"files": {}}, "files: \n    -model.pt 0o644 abc"),
        ({"ranks": 3}, "ranks: 1 process(es) used CUDA, 3 recorded"),
    ],
)
def test_each_difference_is_named(harness: ModuleType, change: dict, said: str) -> None:
    program = harness.Program("name", HARNESS, "")
    bare = harness.Run(**BARE)
    assert harness.compare(program, [bare], [bare]) == []
    assert harness.compare(program, [bare], [bare, dataclasses.replace(bare, **change)]) == [said]


def test_requests_differ_beyond_the_spread_of_bare_runs(harness: ModuleType) -> None:
    bare = harness.Run(**BARE)
    more = dataclasses.replace(bare, memory=MORE_MEMORY)
    exact = harness.Program("name", HARNESS, "")
    by_time = harness.Program("name", HARNESS, "", jitter={"memory": True})
    assert len(harness.compare(exact, [bare], [more])) == 1
    assert harness.compare(exact, [bare, more], [more]) == []
    assert harness.compare(by_time, [bare], [more]) == ["allocator: allocations 100 to 100 bare, 103 recorded"]
    assert harness.compare(by_time, [bare, more], [more]) == []


def test_a_program_without_its_package_is_not_passed(harness: ModuleType) -> None:
    missing = harness.Verdict(harness.Program("name", HARNESS, "about"), harness.NOT_INSTALLED, ["timm"])
    assert "| name | about | not installed |" in harness.table([missing])


def test_every_program_says_what_it_does(harness: ModuleType) -> None:
    found = harness.programs()
    assert len(found) > 90 and len({program.name for program in found}) == len(found)
    assert all(program.about for program in found)


SUITE = """
import os, unittest

class TestCuda(unittest.TestCase):
    def test_passes(self):
        pass

    def test_fails(self):
        self.assertEqual(1, 2)

    @unittest.skip("not here")
    def test_is_skipped(self):
        pass

    def test_ends_the_process(self):
        os._exit(3)

    def test_ends_the_process_well(self):
        os._exit(0)

    def test_fails_recorded(self):
        self.assertIn("FIELD_SITE", os.environ)  # of bare runs

    def test_passes_with_a_subtest(self):
        with self.subTest("one"):
            pass

    def test_passes_after_another(self):
        self.assertFalse(hasattr(TestCuda, "left"))

    def test_fails_and_leaves_something(self):
        TestCuda.left = True
        self.fail()
"""


def suites(checkout: pathlib.Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, HARNESS.parent / "suites.py", checkout, "--only", "test_cuda.py", "--oomph", OOMPH, *options]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)


def test_a_suite_goes_on_after_a_test_that_ends_its_process(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test/test_cuda.py").write_text(SUITE)
    known = tmp_path / "known.json"
    listed = ["test_fails", "test_is_skipped", "test_ends_*", "test_passes", "test_not_there", "test_fails_and*"]
    known.write_text(json.dumps([{"why": "for a reason", "tests": [f"test_cuda.py::TestCuda::{name}" for name in listed]}]))
    results = tmp_path / "results.json"
    done = suites(tmp_path, "--known", known, "--json", results)
    found = json.loads(results.read_text())
    assert found["bare"]["test_cuda.py::TestCuda::test_ends_the_process_well"]["cause"].startswith("its process ended with 0")
    words = {mode: {test.rpartition("::")[2]: result["outcome"] for test, result in rows.items()} for mode, rows in found.items()}
    expected = {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_is_skipped": "skipped",
        "test_ends_the_process": "failed",
        "test_ends_the_process_well": "failed",
        "test_fails_and_leaves_something": "failed",
        "test_fails_recorded": "passed",
        "test_passes_with_a_subtest": "passed",
        "test_passes_after_another": "passed",
    }
    assert words == {"bare": expected, "recorded": {**expected, "test_fails_recorded": "failed"}}
    lines = done.stdout.splitlines()
    assert sum("TestCuda::test_passes (" in line and "passes, but is listed" in line for line in lines) == 2
    assert sum("TestCuda::test_fails_recorded (recorded)" in line for line in lines) == 1
    assert lines[-1] == "3 not as listed in known.json" and done.returncode == 1, done.stdout + done.stderr


def test_a_process_that_fails_after_its_last_test_is_a_failure(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test/test_cuda.py").write_text("import atexit, os\natexit.register(os._exit, 3)\ndef test_passes(): pass\n")
    done = suites(tmp_path, "--mode", "bare")
    assert done.returncode == 1 and "test_cuda.py::exit (bare): exit code 3 after the last test" in done.stdout


@pytest.mark.parametrize(
    ("content", "options", "error"),
    [
        (None, [], "no test_cuda.py in"),
        ("", [], "test_cuda.py has no tests (bare)"),
        ("import nothing_of_this_name", [], "test_cuda.py does not run (bare, exit code 2)"),
        ("def test_passes(): pass", ["--tests", "*other*"], "no test matches *other*"),
    ],
)
def test_suites_that_cannot_run_are_an_error(tmp_path: pathlib.Path, content: str | None, options: list[str], error: str) -> None:
    (tmp_path / "test").mkdir()
    if content is not None:
        (tmp_path / "test/test_cuda.py").write_text(content)
    done = suites(tmp_path, "--mode", "bare", *options)
    assert done.returncode == 2 and error in done.stderr, done.stdout + done.stderr
