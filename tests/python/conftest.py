"""What the tests of programs on a pretended GPU share: the command, and a way to run a program with it."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OOMPH = pathlib.Path(os.environ.get("OOMPH", ROOT / "target/debug/oomph")).resolve()
FIXTURES = ROOT / "fixtures"


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
        options = ("--gpu", "h200", "--steps", steps, "--once", "--json", "--python", sys.executable, *options)
        done = self.run("predict", *options, "--", str(script), *map(str, arguments))
        assert done.returncode == 0, done.stderr
        return Result(json.loads(done.stdout), done.stderr)

    def answer(self, program: str, *options: str, gpu: str = "h200", env: dict[str, str] | None = None) -> dict:
        """The JSON answer about a program that is expected to run."""
        self.write(program)
        done = self.run("predict", "--gpu", gpu, "--python", sys.executable, "--json", *options, "train.py", env=env)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def predict(tmp_path: pathlib.Path) -> Predict:
    return Predict(tmp_path)
