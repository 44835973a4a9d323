"""`oomph doctor`: what it finds is so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from conftest import OOMPH


def doctor(*arguments: str, **environment: str) -> tuple[dict, int]:
    command = [OOMPH, "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def found(answer: dict) -> dict[str, tuple[str, str]]:
    return {check["name"]: (check["state"], check["found"]) for check in answer["checks"]}


def test_a_machine_that_can_record() -> None:
    answer, code = doctor("--python", sys.executable)
    checks = found(answer)
    assert code == 0 and answer["ok"], answer
    assert checks["python"] == ("ok", f"{sys.version.split()[0]} at {sys.executable}")
    assert checks["torch"][1].startswith(torch.__version__)
    assert checks["recorder"][0] == checks["emulator"][0] == checks["cache"][0] == "ok"


def test_a_python_without_torch(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    answer, code = doctor("--python", str(empty / "bin/python"))
    checks = found(answer)
    assert code == 1 and not answer["ok"]
    assert checks["torch"] == ("failed", "not installed for this Python")
    assert "recorder" not in checks


def test_no_python_and_no_cache(tmp_path: Path) -> None:
    answer, code = doctor("--python", str(tmp_path / "none"), OOMPH_CACHE_DIR="/proc/none")
    checks = found(answer)
    assert code == 1
    assert checks["python"][0] == "failed" and "No such file" in checks["python"][1]
    assert checks["cache"][0] == "failed"
