"""The emulated GPU for programs that are not recorded."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import NoReturn

HERE = pathlib.Path(__file__).resolve().parent


def stop(message: str) -> NoReturn:
    """Ends with the exit code of trials that could not run."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


class Emulated:
    """What `oomph run --emulate` sets up for a program, less the recorder: kept once, and copied for each run."""

    VARIABLES = ("OOMPH_EMULATOR", "MALLOC_ARENA_MAX", "WANDB_MODE")

    def __init__(self, oomph: pathlib.Path, card: str, folder: pathlib.Path, *more: str) -> None:
        self.folder = folder
        environment = {**os.environ, "FIELD_CAPTURE": str(folder), "PYTHONPATH": "", "LD_LIBRARY_PATH": ""}
        options: list[str | pathlib.Path] = [
            "--emulate",
            card,
            *more,
            "-o",
            folder / "recording",
            "--python",
            HERE / "capture.sh",
        ]
        subprocess.run([oomph, "run", *options, "none.py"], env=environment, cwd=folder, capture_output=True, timeout=60)
        kept = folder / "environment"
        if not kept.exists():
            stop(f"`{oomph} run --emulate {card}` does not start a program")
        (folder / "site" / "oomph_child").rename(folder / "site" / "oomph_emulated")
        pairs = (pair.partition("=") for pair in kept.read_text().split("\0") if pair)
        self.environment = {name: value for name, _, value in pairs}

    def variables(self, side: pathlib.Path) -> dict[str, str]:
        """The environment of a run whose own files are below `side`."""
        scratch = side / "emulated"
        (scratch / "ranks").mkdir(parents=True)
        libraries = str(self.folder / "lib")
        return {
            **{name: self.environment[name] for name in self.VARIABLES if name in self.environment},
            "PYTHONPATH": str(HERE / "bare"),
            "FIELD_SITE": str(self.folder / "site"),
            "FIELD_LIBRARY": os.path.realpath(os.path.join(libraries, "libcuda.so.1")),
            "LD_LIBRARY_PATH": libraries,
            "TRITON_LIBCUDA_PATH": libraries,
            "OOMPH_EMULATOR_NOTES": str(scratch / "notes"),
            "OOMPH_EMULATOR_RENDEZVOUS": str(scratch / "ranks"),
            "TRITON_CACHE_DIR": str(scratch / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(scratch / "torchinductor"),
        }
