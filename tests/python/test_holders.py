"""Who holds a tensor, with real torch: each way to hold one is built, named, let go, and what is freed is measured. On the CPU,
and on an emulated GPU with PyTorch's own allocator."""

import ast
import json
import pathlib
import subprocess
import sys

import pytest

from conftest import OOMPH

PROGRAM = pathlib.Path(__file__).with_name("holders_program.py")


def cases():
    tree = ast.parse(PROGRAM.read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES"]
    return ast.literal_eval(assigned[0].value)


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.nightly), "cuda"])
def test_the_holder_is_named_and_what_it_retains_is_freed_with_it(device, tmp_path):
    command = [sys.executable, PROGRAM, device]
    if device == "cuda":
        command = [OOMPH, "run", "--emulate", "h100", "-o", tmp_path / "recording", "--python", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == len(cases()), done.stderr
    for row in rows:
        _, _, path, kind, _ = cases()[row["case"]]
        holder = row["holder"]
        assert holder["path"] == path.replace("ID", str(row["id"])), row
        assert holder["kind"] == kind, row
        assert holder["retained"] == row["freed"] > 0, row
        assert row["held_by"][0].startswith(holder["path"]), row
