#!/usr/bin/env python3
"""Reruns every `$ oomph …` block of the README and the documentation, and replaces its output.

    python docs/refresh_blocks.py             all pages; prints those that changed
    python docs/refresh_blocks.py README.md   one page

A block is fenced with ```console, begins with `$ oomph ` and runs from the root of the repository, so it can only use
bundled files. The environment variable OOMPH names the program; default: target/debug/oomph. A test
(crates/cli/tests/it/docs_blocks.rs) compares every block with what `oomph` prints.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
OOMPH = pathlib.Path(os.environ.get("OOMPH", ROOT / "target/debug/oomph")).absolute()
BLOCK = re.compile(r"^```console\n\$ oomph (?P<arguments>.*)\n(?P<output>(?:(?!```).*\n)*)```$", re.MULTILINE)


def pages() -> list[pathlib.Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def output(arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    done = subprocess.run(
        [OOMPH, *arguments.split()], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode > 1:
        sys.exit(f"$ oomph {arguments}\n{done.stderr}")
    return done.stdout


def refreshed(page: str) -> str:
    return BLOCK.sub(lambda block: f"```console\n$ oomph {block['arguments']}\n{output(block['arguments'])}```", page)


def main() -> None:
    for path in [pathlib.Path(name) for name in sys.argv[1:]] or pages():
        before = path.read_text()
        after = refreshed(before)
        if after != before:
            path.write_text(after)
            print(path)


if __name__ == "__main__":
    main()
