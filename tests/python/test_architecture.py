"""The shape of the source: arrows between packages, no import cycles across folders, one meaning per type name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/oomph"
CRATES = sorted(path.parent for path in ROOT.glob("crates/*/Cargo.toml"))
SOURCES = sorted(ROOT.glob("crates/*/src/**/*.rs"))
MAX_WIDTH = int(re.findall(r"max_width = (\d+)", (ROOT / "rustfmt.toml").read_text())[0])
MAX_CLI_LINES = 9_300


def drawn() -> dict[str, set[str]]:
    lines = re.findall(r"^- `(\w+)` imports (.*)$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", imported)) for name, imported in lines}


def imported(package: str) -> set[str]:
    """Packages of oomph that the files of one package import, relatively or by name."""
    found = set()
    for file in (PACKAGE / package).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level == 2:
                    found |= {module.partition(".")[0]} if module else {alias.name for alias in node.names}
                elif node.level == 0 and module.partition(".")[0] in ("oomph", "oomph_child"):
                    found.add(module.split(".")[1])
    return found - {package}


def test_the_arrows_between_crates_are_those_of_the_manifests() -> None:
    lines = re.findall(r"^- `(\w+)` uses (.*)$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", used)) for name, used in lines}
    names = {crate.name for crate in CRATES}
    built = {}
    for crate in CRATES:
        sections = (crate / "Cargo.toml").read_text().split("\n[")
        dependencies = "".join(section for section in sections if re.match(r"(target\..*\.)?dependencies\]", section))
        built[crate.name] = names & set(re.findall(r"^([\w-]+)", dependencies, re.MULTILINE))
    assert listed == built


def test_the_arrows_between_packages_are_those_of_the_imports() -> None:
    expected = drawn()
    # `oomph.record()` alone uses the extension module, and says so where it does.
    assert {name: imported(name) - {"_native"} for name in expected} == expected
    inside = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"integrations"}
    assert set(expected) == inside


def without_tests(path: Path) -> str:
    return path.read_text().split("#[cfg(test)]\nmod tests")[0]


def test_a_type_name_has_one_meaning() -> None:
    places = defaultdict(set)
    for path in SOURCES:
        declared = re.findall(r"^ *(?:pub(?:\(\w+\))? )?(?:struct|enum|trait) (\w+)", without_tests(path), re.MULTILINE)
        for name in declared:
            places[name].add(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert not {name: sorted(where) for name, where in places.items() if len(where) > 1}


def test_lines_fit_the_width_of_the_formatter() -> None:
    """A literal beyond the width makes rustfmt leave the whole expression alone."""
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MAX_WIDTH
    ]
    assert not wide


def test_the_command_line_stays_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in SOURCES if "crates/cli/" in str(path)) < MAX_CLI_LINES


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_no_import_cycle_crosses_folders(crate: Path) -> None:
    modules = Modules(crate / "src")
    assert not [cycle for cycle in modules.cycles() if len({modules.files[name].parent for name in cycle}) > 1]


class Modules:
    """The modules of a crate by their paths (`run::model`), and what each imports from the others."""

    def __init__(self, src: Path) -> None:
        self.files = {self._name(path.relative_to(src)): path for path in src.rglob("*.rs")}
        self._exported = {name: self._reexports(name) for name in self.files}
        self.imports = {name: self._imports(name) for name in self.files}

    @staticmethod
    def _name(path: Path) -> str:
        parts = [*path.parent.parts, path.stem]
        return "::".join(parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts)

    def _reexports(self, module: str) -> dict[str, str]:
        found = {}
        for tree in re.findall(r"^ *pub(?:\(\w+\))? use ([^;]+);", self.files[module].read_text(), re.MULTILINE):
            for path in leaves(tree):
                path = path.removeprefix("self::").removeprefix("crate::")
                *folders, name = path.split("::")
                found[name] = "::".join([*([module] if module else []), *folders])
        return found

    def _imports(self, module: str) -> set[str]:
        text = re.sub(r"//.*", "", without_tests(self.files[module]))
        paths = [
            leaf for tree in re.findall(r"\bcrate::(\{[^;]*\}|[\w:]+(?:::\{[^;]*\})?)", text) for leaf in leaves(tree.rstrip(":"))
        ]
        for tree in re.findall(r"\buse super::([^;]+);", text):
            for leaf in leaves(tree):
                above = module.split("::")[:-1]
                while leaf.startswith("super::"):
                    leaf, above = leaf.removeprefix("super::"), above[:-1]
                paths.append("::".join([*above, leaf]))
        return {self._resolve(path) for path in paths} - {module, ""} if module else set()

    def _resolve(self, path: str) -> str:
        """The module that defines what a path names, through re-exports."""
        parts = path.split("::")
        length = next((n for n in range(len(parts), 0, -1) if "::".join(parts[:n]) in self.files), 0)
        module, rest = "::".join(parts[:length]), parts[length:]
        seen = {module}
        while rest and (target := self._exported[module].get(rest[0])) in self.files and target not in seen:
            module = target
            seen.add(module)
        return module

    def cycles(self) -> list[list[str]]:
        """Groups of modules that all reach each other."""
        reached = {name: self._reach(name) for name in self.files}
        groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in self.files}
        return [sorted(group) for group in groups if len(group) > 1]

    def _reach(self, start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in self.imports[waiting.pop()] - seen:
                seen.add(target)
                waiting.append(target)
        return seen


def leaves(tree: str) -> list[str]:
    """The paths of a `use` tree: `a::{b, c::{d, e as f}}` is `a::b`, `a::c::d`, `a::c::e`."""
    tree = re.sub(r"\s+as\s+\w+", "", tree)
    paths, prefixes, current = [], [""], ""
    for symbol in re.sub(r"\s", "", tree) + ",":
        if symbol == "{":
            prefixes.append(prefixes[-1] + current)
            current = ""
        elif symbol in ",}":
            if current:
                paths.append(prefixes[-1] + current)
            current = ""
            if symbol == "}":
                prefixes.pop()
        else:
            current += symbol
    return paths
