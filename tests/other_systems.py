"""Checks on Linux that the crates build on systems that are not Linux: python tests/other_systems.py

A copy of the workspace, in target/other-systems, has no Linux in it: `target_os = "linux"` and `unix` are false in its
`cfg`, Unix modules have other names, and crates for Unix only are not among its dependencies. So a use of any of them
without `cfg` is an error there, as it is on Windows. The names of Windows itself, and the dependencies, are not checked.

`cargo build --bin oomph` in the copy builds the program as other systems have it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "target/other-systems"
COPIED = ("Cargo.toml", "Cargo.lock", "crates/**/*", "python/oomph/**/*.py")
"""The workspace, and the files that its build scripts read."""
UNIX_CRATES = "libc|rustix|signal-hook"
UNIX_MODULES = re.compile(r"\bos::(unix|linux|fd|\{)")
ABSENT = re.compile(r"""^\[target\.'cfg\((any\(\)|target_os = "none")\)'[^\[]*""", re.MULTILINE)
"""Tables of dependencies that are not there."""


def elsewhere(text: str) -> str:
    """A file as it would have to be for a compiler on Linux to treat it like one on another system."""
    lines = text.replace('target_os = "linux"', 'target_os = "none"').split("\n")
    text = "\n".join(re.sub(r"(?<=[(, ])unix(?=[),])", "any()", line) if "cfg" in line else line for line in lines)
    return UNIX_MODULES.sub("not_on_this_system", text)


def elsewhere_manifest(text: str) -> str:
    return re.sub(rf"^({UNIX_CRATES}) = .*\n", "", ABSENT.sub("", elsewhere(text)), flags=re.MULTILINE)


def copied(path: Path) -> bytes:
    if path.name == "Cargo.toml":
        return elsewhere_manifest(path.read_text(encoding="utf-8")).encode()
    return elsewhere(path.read_text(encoding="utf-8")).encode() if path.suffix == ".rs" else path.read_bytes()


def main() -> int:
    files = [path for pattern in COPIED for path in ROOT.glob(pattern) if path.is_file() and "tests" not in path.parts]
    for path in files:
        copy, content = COPY / path.relative_to(ROOT), copied(path)
        # Cargo checks again what is newer than its last answer.
        if path.name != "Cargo.lock" and not (copy.is_file() and copy.read_bytes() == content):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    (COPY / "Cargo.lock").write_bytes((ROOT / "Cargo.lock").read_bytes())
    kept = {COPY / path.relative_to(ROOT) for path in files}
    for path in [*COPY.glob("crates/**/*"), *COPY.glob("python/**/*")]:
        if path.is_file() and path not in kept:
            path.unlink()
    # The dependencies are those of the workspace itself, already checked by its own clippy.
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
    command = ["cargo", "clippy", "--quiet", "--workspace", "--target-dir", str(target), "--", "-D", "warnings"]
    return subprocess.run(command, cwd=COPY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
