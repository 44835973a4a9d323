"""Runs small programs through `oomph predict`: for the tests of what it does inside a program's process.

`OOMPH` names the binary, otherwise the newest of target/{debug,release} is used; the interpreter of the tests runs the
programs, and needs a CUDA build of torch, but no GPU.
"""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def oomph():
    if "OOMPH" in os.environ:
        return Path(os.environ["OOMPH"]).resolve()
    built = [path for path in (ROOT / "target" / kind / "oomph" for kind in ("debug", "release")) if path.exists()]
    if not built:
        pytest.exit("build oomph first: cargo build", returncode=1)
    return max(built, key=lambda path: path.stat().st_mtime)


@dataclass
class Result:
    answer: dict
    """The JSON."""
    said: str
    """Standard error: what the program prints, and what oomph tells of its run."""


def predict(folder, source, *options, steps="3", arguments=()):
    """Predicts a program, given as its text; it has to end well."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(source))
    command = [oomph(), "predict", "--gpu", "h200", "--steps", steps, "--once", "--json", "--python", sys.executable]
    done = subprocess.run(
        [*command, *options, "--", script, *arguments], capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return Result(json.loads(done.stdout), done.stderr)
