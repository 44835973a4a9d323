"""`oomph.predict`: whether a program fits on a card, without the card."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from oomph.answers import Prediction
from oomph.snapshot import Path, Size


def predict(
    program: Sequence[Path],
    *,
    gpu: str,
    gpu_memory: Size | None = None,
    gpus: int = 1,
    steps: int | None = None,
    time_limit: int | None = None,
    techniques: Sequence[str] = (),
    vary: str | None = None,
    once: bool = False,
    output: Path | None = None,
) -> Prediction:
    """`oomph predict`: runs a program on an emulated GPU and returns what it needs there.

        oomph.predict(["train.py", "--batch-size", "16"], gpu="l4").fits

    `program` is a script or `-m MODULE` for this interpreter, or a command, with its arguments. It runs in a process of its
    own, and its output is not shown. `output` keeps the recording in a folder. Raises ValueError with the command's message
    if there is no answer.
    """
    options = ["--gpu", gpu, "--gpus", str(gpus), "--python", sys.executable, "--quiet", "--json"]
    options += ["--gpu-memory", str(gpu_memory)] if gpu_memory is not None else []
    options += ["--steps", str(steps)] if steps is not None else []
    options += ["--time-limit", str(time_limit)] if time_limit is not None else []
    options += ["--vary", vary] if vary is not None else []
    options += ["--try", ",".join(techniques)] if techniques else []
    options += ["--once"] if once else []
    options += ["--output", os.fspath(output)] if output is not None else []
    # A process of its own: the command passes signals on to the program and may be stopped with it.
    words = [os.fspath(word) for word in program]
    command = [sys.executable, "-m", "oomph", "predict", *options, "--", *words]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode not in (0, 1) or not done.stdout:
        raise ValueError(done.stderr.strip() or f"`oomph predict` ended with exit code {done.returncode}")
    return Prediction(json.loads(done.stdout))
