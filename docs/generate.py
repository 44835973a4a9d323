#!/usr/bin/env python3
"""Writes the pages that come from the program itself: docs/reference/cli.md, from `oomph COMMAND --help`, and the JSON
schemas docs/reference/schemas/COMMAND.json, from `oomph schema COMMAND`. And docs/llms.txt, the index for language models:
below its handwritten head, the pages of `nav` in mkdocs.yml, each with its first sentence.

    python docs/generate.py             writes them
    python docs/generate.py --check     exits with 1 if a committed file differs

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
SCHEMAS = ROOT / "docs/reference/schemas"
INDEX = ROOT / "docs/llms.txt"
SITE = "https://oomph-dev.github.io/oomph/"
WIDTH = "100"

HEAD = """# Command line

<!-- Written by docs/generate.py from `oomph --help`. Do not edit. -->

What `oomph COMMAND --help` prints; `oomph COMMAND -h` is shorter. [Commands at a glance](commands.md) says what each
command is for.
"""


def printed(*arguments: str) -> str:
    """Standard output, as wide as on a terminal of `WIDTH` columns."""
    env = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1"}
    return subprocess.run(
        [OOMPH, *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout


def help_of(*command: str) -> str:
    return "\n".join(line.rstrip() for line in printed(*command, "--help").rstrip().splitlines())


def commands(overview: str) -> list[str]:
    listed = overview.partition("\nCommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)


def page() -> str:
    overview = help_of()
    parts = [HEAD, f"## oomph\n\n```text\n{overview}\n```\n"]
    parts += [f"## oomph {name}\n\n```text\n{help_of(name)}\n```\n" for name in commands(overview) if name != "help"]
    return "\n".join(parts)


def first_sentence(path: pathlib.Path) -> str:
    """What a page says about itself, without its links; empty if it begins with a list, a table or an example."""
    lines = path.read_text().partition("\n")[2].lstrip("\n")
    lines = re.sub(r"^<!--.*?-->\s*", "", lines, flags=re.DOTALL)
    if re.match(r"[-|#!>]|    |```", lines):
        return ""
    text = " ".join(lines.partition("\n\n")[0].split())
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.split(r"(?<=[.:])\s", text)[0].rstrip(".:")


def index() -> str:
    """The head of the index as it is, and the pages in the order of the site."""
    text = INDEX.read_text().partition("\n## ")[0].rstrip() + "\n"
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    for title, page in re.findall(r"^ +- ([^:\n]+):(?: (\S+\.md))?$", nav, re.MULTILINE):
        if not page:
            text += f"\n## {title}\n\n"
            continue
        if page == "index.md":
            text += "\n## Start\n\n"
            continue
        address = SITE + page.replace(".md", "/")
        about = first_sentence(ROOT / "docs" / page)
        text += f"- [{title}]({address})" + (f": {about}" if about else "") + "\n"
    return text


def generated() -> dict[pathlib.Path, str]:
    """Every file with its text."""
    schemas = {SCHEMAS / f"{name}.json": printed("schema", name) for name in printed("schema").split()}
    return {PAGE: page(), INDEX: index(), **schemas}


def main() -> int:
    files = generated()
    if sys.argv[1:] != ["--check"]:
        SCHEMAS.mkdir(exist_ok=True)
        for path, text in files.items():
            path.write_text(text)
        return 0
    wrong = sorted(path for path in SCHEMAS.glob("*") if path not in files)
    for path, new in files.items():
        old = path.read_text() if path.exists() else ""
        differences = difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "generated", lineterm="")
        print("\n".join(differences), end="")
        if old != new:
            wrong.append(path)
    for path in wrong:
        print(f"\n{path.relative_to(ROOT)} is not current: run docs/generate.py", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
