"""A process has one copy of oomph: that of the installed package if it has the same files as the command, else the laid-out one."""

from __future__ import annotations

import pathlib
import shutil

import pytest

import oomph
from conftest import ROOT

PROGRAM = """
    import json, sys
    {first}
    import torch

    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters())
    for _ in range(3):
        layer(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    names = [name for name in sys.modules if name.endswith(".recording.recorder")]
    files = [sys.modules[name].__file__ for name in names]
    print("COPIES", json.dumps({{"names": names, "files": files, "active": [sys.modules[name].active is not None for name in names]}}))
    {last}
"""


@pytest.fixture
def installed(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the package of this checkout, as `pip install --target` makes it."""
    folder = tmp_path / "packages"
    shutil.copytree(ROOT / "python/oomph", folder / "oomph", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "oomph/_native.abi3.so").symlink_to(pathlib.Path(oomph.__file__).with_name("_native.abi3.so"))
    return folder


@pytest.fixture
def copies(run, installed):
    def copies(first: str = "", last: str = "") -> dict:
        program = PROGRAM.format(first=first, last=last)
        recorded = run(program, "--cpu", gpu=False, env={"PYTHONPATH": str(installed)})
        assert recorded.done.returncode == 0, recorded.done.stderr
        assert recorded.json()["steps"]["count"] == 3, recorded.done.stderr
        return recorded.said("COPIES")

    return copies


def test_the_recorder_is_imported_from_the_installed_package(copies, installed):
    file = str(installed / "oomph/recording/recorder.py")
    assert copies() == {"names": ["oomph.recording.recorder"], "files": [file], "active": [True]}


@pytest.mark.parametrize(
    "first",
    [
        "import oomph; oomph.record('other').start()",
        "import oomph.recording.api, oomph.pytest_plugin",
        "import oomph.leaks",
    ],
)
def test_a_program_that_imports_oomph_before_torch_has_one_recorder(copies, first):
    found = copies(first)
    assert found["names"] == ["oomph.recording.recorder"] and found["active"] == [True]


def test_a_package_with_other_files_is_left_alone(copies, installed):
    with (installed / "oomph/recording/pace.py").open("a") as file:
        file.write("# another version\n")
    assert copies()["names"] == ["oomph_child.recording.recorder"]


def test_a_module_that_waits_for_torch_is_not_used_before_it_is_complete(copies):
    assert copies("from oomph.recording.cpu_history import CpuHistory")["names"] == ["oomph_child.recording.recorder"]


def test_a_module_of_the_program_that_is_called_oomph_is_its_own(copies, predict):
    predict.write("value = 1", "oomph.py")
    found = copies(last="assert 'oomph' not in sys.modules; import oomph; assert oomph.value == 1")
    assert found["names"] == ["oomph_child.recording.recorder"]
