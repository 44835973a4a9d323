"""The texts of a release: checks that every file agrees on its version, and prints its notes and its README.

    python .github/scripts/release.py check            # the workspace version is the same everywhere
    python .github/scripts/release.py check v0.2.0     # it is also the tag, and the changelog has a dated section for it
    python .github/scripts/release.py notes v0.2.0     # that section of the changelog, for the GitHub release
    python .github/scripts/release.py readme           # the README for a package index, where relative links lead nowhere

Needs Python 3.11 or later."""

import json
import re
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "oomph-dev/oomph"
RELATIVE_LINK = re.compile(r"(?P<before>(?P<is_image>!?)\[[^\]]*\])\((?!https?://|#)(?P<target>[^)\s]+)\)")
DATED = re.compile(r"^## (?P<version>\d+\.\d+\.\d+\S*) \((?P<date>\d{4}-\d{2}-\d{2})\)$")


def workspace_version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]


def python_version(version: str) -> str:
    """The version as packages for Python have it: 0.2.0-rc.1 becomes 0.2.0rc1."""
    return re.sub(r"-(a|b|rc)\w*\.?(\d+)$", r"\1\2", version)


def disagreements(version: str) -> list[str]:
    """Files that name another version than the workspace."""
    found = []
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    stale = sorted(
        package["name"]
        for package in lock["package"]
        if package["name"].startswith("oomph-") and "source" not in package and package["version"] != version
    )
    if stale:
        found.append(f"Cargo.lock: {', '.join(stale)} (run `cargo update --workspace --offline`)")
    citation = re.findall(r"^version: [\"']?([^\"'\n]+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if citation != [version]:
        found.append(f"CITATION.cff: {', '.join(citation) or 'no version'}")
    for name in ("package.json", "package-lock.json"):
        extension = json.loads((ROOT / "editors/vscode" / name).read_text(encoding="utf-8"))["version"]
        if extension != version:
            found.append(f"editors/vscode/{name}: {extension}")
    return found


def section(version: str) -> str | None:
    """The changelog's text for a version, without its heading; None if there is no section with a date."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        dated = DATED.match(line)
        if dated and dated["version"] == version:
            rest = lines[at + 1 :]
            end = next((index for index, later in enumerate(rest) if later.startswith("## ")), len(rest))
            return "\n".join(rest[:end]).strip() + "\n"
    return None


def readme(version: str) -> str:
    """The README with links to the files of this version on GitHub."""

    def absolute(link: re.Match[str]) -> str:
        of = "raw.githubusercontent.com/{}/v{}" if link["is_image"] else "github.com/{}/blob/v{}"
        return f"{link['before']}(https://{of.format(REPOSITORY, version)}/{link['target']})"

    return RELATIVE_LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in ("check", "notes", "readme") or len(arguments) > 2 or arguments == ["notes"]:
        print(__doc__, file=sys.stderr)
        return 2
    version = workspace_version()
    if arguments[0] == "readme":
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        print(readme(version), end="")
        return 0
    problems = disagreements(version)
    text = None
    if len(arguments) == 2:
        tag = arguments[1]
        if tag != f"v{version}":
            problems.append(f"the tag is {tag}, Cargo.toml says {version}")
        text = section(tag.removeprefix("v"))
        if not text or not text.strip():
            problems.append(f"CHANGELOG.md: no section `## {tag.removeprefix('v')} (YYYY-MM-DD)` with text")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 1
    if arguments[0] == "notes":
        print(text, end="")
    else:
        print(f"version {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
