"""The documentation: its examples run as they stand, its links resolve, and generated pages are current."""

import doctest
import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import OOMPH, ROOT

REPOSITORY = "https://github.com/oomph-dev/oomph/blob/main/"
SITE = "https://oomph-dev.github.io/oomph/"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", ["reference/python.md"])
def test_every_example_gives_what_the_page_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / name), module_relative=False)
    assert tried > 0 and failed == 0


def anchors(page: pathlib.Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site name them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.add(next(name for count in range(1000) if (name := f"{slug}-{count}" if count else slug) not in found))
    return found


def broken(page: pathlib.Path) -> list[str]:
    """Links of a page to files or headings that are not in this repository."""
    wrong = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "code", FENCE.sub("", page.read_text()))):
        address, _, anchor = link.partition("#")
        if address.startswith(REPOSITORY):
            target = ROOT / address.removeprefix(REPOSITORY)
        elif re.match(r"[a-z]+:", address):
            continue
        else:
            target = page if not address else (page.parent / address).resolve()
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: pathlib.Path) -> None:
    assert broken(page) == []


def test_broken_links_are_found(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`: three\n[a](#one-two-three) [b](#four) [c](page.md) [d](other.md)\n"
        f"[e]({REPOSITORY}Makefile) [f]({REPOSITORY}none)\n`[g](h)`\n```\n[i](j)\n```\n![`k` l](m.png)\n"
    )
    assert broken(page) == ["#four", "other.md", f"{REPOSITORY}none", "m.png"]


def test_every_page_that_the_sources_name_exists() -> None:
    # Help texts, error messages, comments and tests.
    files = subprocess.run(
        ["git", "ls-files", "crates", "python", "tests", "field", "bench", "Makefile", "*.toml", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    named = set()
    for name in files:
        if (ROOT / name).suffix in (".rs", ".py", ".md", ".toml", "") and not name.startswith("fixtures"):
            named |= set(re.findall(r"(?<![\w/.])docs/[\w/-]+\.\w+", (ROOT / name).read_text(errors="replace")))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_index_for_language_models_names_pages_that_exist() -> None:
    addresses = re.findall(re.escape(SITE) + r"([\w/-]*)", (ROOT / "docs/llms.txt").read_text())
    assert len(addresses) > 10
    assert [page for page in addresses if not (ROOT / f"docs/{page.rstrip('/')}.md").exists()] == []


def test_the_program_of_the_tutorial_is_the_example() -> None:
    page = (ROOT / "docs/tutorial.md").read_text()
    assert page.partition("```python\n")[2].partition("```")[0] == (ROOT / "examples/validate_leak.py").read_text()


@pytest.mark.parametrize("script", ["generate.py", "terminal.py"])
def test_what_scripts_make_of_the_program_is_current(script: str) -> None:
    """The page of the command line, the schemas, and the picture of a terminal."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / script, "--check"],
        env={**os.environ, "OOMPH": str(OOMPH)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
