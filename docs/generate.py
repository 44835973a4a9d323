#!/usr/bin/env python3
"""Writes the pages that come from the program itself: docs/reference/cli.md, from `oomph COMMAND --help`.

    python docs/generate.py             writes it
    python docs/generate.py --check     exits with 1 if the committed page differs

The environment variable OOMPH names the program; default: target/debug/oomph. (docs/reference/rules.md comes from
`oomph rule --markdown --all`; a test compares it.)
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
OOMPH = pathlib.Path(os.environ.get("OOMPH", ROOT / "target/debug/oomph")).absolute()
PAGE = ROOT / "docs/reference/cli.md"
WIDTH = "100"

HEAD = """# Command line

<!-- Written by docs/generate.py from `oomph --help`. Do not edit. -->

What `oomph COMMAND --help` prints; `oomph COMMAND -h` is shorter. [Commands at a glance](commands.md) says what each
command is for.
"""


def help_of(*command: str) -> str:
    """The help text, as wide as on a terminal of `WIDTH` columns."""
    env = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1"}
    done = subprocess.run(
        [OOMPH, *command, "--help"], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def commands(overview: str) -> list[str]:
    listed = overview.partition("\nCommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)


def page() -> str:
    overview = help_of()
    parts = [HEAD, f"## oomph\n\n```text\n{overview}\n```\n"]
    parts += [f"## oomph {name}\n\n```text\n{help_of(name)}\n```\n" for name in commands(overview) if name != "help"]
    return "\n".join(parts)


def main() -> int:
    new = page()
    if sys.argv[1:] == ["--check"]:
        old = PAGE.read_text() if PAGE.exists() else ""
        differences = difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "oomph --help", lineterm="")
        print("\n".join(differences), end="")
        if old != new:
            print(f"\n{PAGE.relative_to(ROOT)} is not current: run docs/generate.py", file=sys.stderr)
        return int(old != new)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
