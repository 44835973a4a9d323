"""The arrows between packages of python/oomph, as ARCHITECTURE.md lists them, against every import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/oomph"


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


def test_the_arrows_between_packages_are_those_of_the_imports() -> None:
    expected = drawn()
    # `oomph.record()` alone uses the extension module, and says so where it does.
    assert {name: imported(name) - {"_native"} for name in expected} == expected
    inside = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"integrations"}
    assert set(expected) == inside
