"""`oomph.fleet`: what the ranks of a large job say together."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Literal

from oomph import ray_engine
from oomph.answers import Fleet
from oomph.snapshot import Path

_MARK = "note: "


def fleet(
    uris: Path | Iterable[Path],
    *,
    engine: Literal["local", "ray"] = "local",
    by: str | None = None,
) -> Fleet:
    """`oomph fleet`: which ranks need most memory and why, who ran out first, and which ranks are out of line.

        print(oomph.fleet("s3://bucket/job-81234/"))

    `uris` are folders, files, globs or addresses (`s3://`, `gs://`, `az://`, `https://`). `by` names the dimension to compare
    (`pp`, `node`). With `engine="ray"` the ranks are read by the tasks of a Ray cluster: the one that this process is connected
    to, that of `RAY_ADDRESS`, or a new one on this machine (`pip install oomph[ray]`). The answer is the same. Raises
    ValueError with the command's message if there is no answer.
    """
    several = [uris] if isinstance(uris, (str, os.PathLike)) else list(uris)
    inputs = [os.fspath(uri) for uri in several]
    if not inputs:
        raise ValueError("no ranks were given")
    if engine not in ("local", "ray"):
        raise ValueError(f"expected `local` or `ray` for `engine`, found {engine!r}")
    options = [] if by is None else ["--by", by]
    notes: list[str] = []
    # Lives as long as the answer, whose text is made when it is first printed.
    summaries = tempfile.TemporaryDirectory(prefix="oomph-fleet-") if engine == "ray" else None
    if summaries is not None:
        try:
            notes += ray_engine.notes(ray_engine.summarize(inputs, summaries.name))
        except ImportError as error:
            raise ImportError("the Ray engine needs Ray: `pip install oomph[ray]`", name=error.name) from error
        inputs = [summaries.name]

    def ask(json: bool) -> tuple[str, list[str]]:
        assert summaries is None or os.path.isdir(summaries.name)
        text, said = _run([*options, *(["--json"] if json else []), *inputs])
        return text, notes + said

    return Fleet(ask)


def _run(arguments: list[str]) -> tuple[str, list[str]]:
    """The output of the command, and its notes. A process of its own: it may take minutes, and Ctrl-C ends it."""
    command = [sys.executable, "-m", "oomph", "fleet", *arguments]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"`oomph fleet` ended with exit code {done.returncode}")
    return done.stdout, [line for line in done.stderr.splitlines() if line.startswith(_MARK)]
