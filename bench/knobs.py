#!/usr/bin/env python3
"""Peaks with and without a library's setting, and whether the report names it: bench/knobs.py [NAME...]

Each program of bench/knobs/ runs on an emulated GPU three times: as it is, with the setting (argument `on`), and as it is on
a card that only the second run fits on. The finding of the third run has to name the setting. Writes the table of
docs/reference/library-settings.md. Needs torch, transformers, accelerate, peft, trl, diffusers, timm, lightning,
torchmetrics, datasets and deepspeed in the interpreter that runs it; OOMPH names the program (default: target/debug/oomph).
"""

import ast
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
OOMPH = os.environ.get("OOMPH", str(ROOT / "target/debug/oomph"))
PAGE = ROOT / "docs/reference/library-settings.md"
BEGIN, END = "<!-- measured by bench/knobs.py -->", "<!-- end -->"
LIBRARIES = "torch transformers accelerate peft trl diffusers timm lightning torchmetrics deepspeed".split()
RANKS = {"fsdp_reshard": 2}
# Settings that change which memory can be shared, not how much is allocated.
RESERVED = {"compile_graphs"}


def predict(name: str, *arguments: str, memory: int | None = None) -> dict:
    """The prediction for a program; the reason it has none is an exception."""
    ranks = RANKS.get(name, 1)
    command = [OOMPH, "predict", "--json", "--steps", "all", "--gpu", "h200"]
    command += ["--gpu-memory", f"{memory}B"] if memory else []
    command += ["--gpus", str(ranks)] if ranks > 1 else []
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command += ["--", sys.executable, *launcher, str(HERE / "knobs" / f"{name}.py"), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"{name} {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def findings(answer: dict) -> list[dict]:
    devices = [device for recorded in answer.get("failing", answer["report"])["inputs"] for device in recorded["devices"]]
    return [finding for device in devices for finding in device["findings"]]


def measure(path: pathlib.Path) -> dict:
    about = ast.get_docstring(ast.parse(path.read_text()))
    what, _, setting = about.rstrip(".").partition(" Setting: ")
    off, on = predict(path.stem), predict(path.stem, "on")
    peak = "peak_reserved" if path.stem in RESERVED else "peak_allocated"
    memory = (off[peak] + on[peak]) // 2 + off["context"]
    small = predict(path.stem, memory=memory)
    named = [finding for finding in findings(small) if word(setting) in finding["fix"]]
    return {
        "what": what,
        "setting": setting,
        "off": off[peak],
        "on": on[peak],
        "exact": "exact" in (off["confidence"], on["confidence"]),
        "fits": small["fits"],
        "named": sorted({finding["kind"] for finding in named}),
    }


def word(setting: str) -> str:
    """The name in a setting that an advice has to contain: the longest of the first piece of code, or the last word."""
    code = re.findall(r"`(.*?)`", setting)
    return max(re.findall(r"\w+", code[0]), key=len) if code else setting.split()[-1]


def mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def main() -> int:
    wanted = sys.argv[1:]
    paths = [path for path in sorted((HERE / "knobs").glob("*.py")) if not wanted or path.stem in wanted]
    rows, problems = [], 0
    for path in paths:
        try:
            row = measure(path)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            problems += 1
            continue
        print(path.stem, json.dumps(row), flush=True)
        problems += not row["named"]
        saved = f"{1 - row['on'] / row['off']:.0%}"
        rows.append(f"| {row['what']} | {row['setting']} | {mib(row['off'])} | {mib(row['on'])} | {saved} |")
    if not wanted and not problems:
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
        head = ["| program | setting | peak | with the setting | saved |", "|---|---|---:|---:|---:|"]
        table = "\n".join([BEGIN, f"Measured with {versions}:", "", *head, *rows, END])
        page = PAGE.read_text()
        PAGE.write_text(page[: page.index(BEGIN)] + table + page[page.index(END) + len(END) :])
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
