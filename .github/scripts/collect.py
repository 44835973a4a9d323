"""Collects the packages of a release: python .github/scripts/collect.py FROM TO

Finds them anywhere below FROM and copies wheels and the source distribution to TO/packages, and stand-alone archives and the
extension for VS Code to TO/archives. Fails if one is missing, unexpected, or of another version than the workspace. Writes
TO/SHA256SUMS, which `sha256sum --check --ignore-missing SHA256SUMS` reads."""

import hashlib
import re
import shutil
import sys
from pathlib import Path

from release import python_version, workspace_version

PLATFORMS = {
    "manylinux x86_64": r"manylinux_2_17_x86_64(\.manylinux2014_x86_64)?",
    "manylinux aarch64": r"manylinux_2_17_aarch64(\.manylinux2014_aarch64)?",
    "musllinux x86_64": r"musllinux_1_2_x86_64",
    "musllinux aarch64": r"musllinux_1_2_aarch64",
    "macOS x86_64": r"macosx_\d+_\d+_x86_64",
    "macOS arm64": r"macosx_\d+_\d+_arm64",
    "Windows x64": r"win_amd64",
}
ARCHIVES = (
    "oomph-x86_64-unknown-linux-gnu.tar.gz",
    "oomph-aarch64-unknown-linux-gnu.tar.gz",
    "oomph-x86_64-apple-darwin.tar.gz",
    "oomph-aarch64-apple-darwin.tar.gz",
    "oomph-x86_64-pc-windows-msvc.zip",
    "oomph.vsix",
)


def expected(version: str) -> dict[str, tuple[str, re.Pattern[str]]]:
    """What a release consists of: the folder and the name of each package."""
    version = re.escape(python_version(version))
    packages = {"source distribution": ("packages", re.compile(rf"oomph-{version}\.tar\.gz"))}
    for name, tag in PLATFORMS.items():
        packages[f"{name} wheel"] = ("packages", re.compile(rf"oomph-{version}-cp310-abi3-{tag}\.whl"))
    for name in ARCHIVES:
        packages[name] = ("archives", re.compile(re.escape(name)))
    return packages


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, target = map(Path, arguments)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    left, problems, chosen = list(files), [], []
    for what, (folder, name) in expected(workspace_version()).items():
        found = [path for path in files if name.fullmatch(path.name)]
        left = [path for path in left if path not in found]
        if len(found) == 1:
            chosen.append((found[0], folder))
        else:
            problems.append(f"{what}: {len(found)} files, expected 1")
    problems += [f"unexpected file: {path.name}" for path in left]
    if problems:
        print("\n".join(f"error: {problem}" for problem in problems), file=sys.stderr)
        return 1
    sums = []
    for path, folder in chosen:
        (target / folder).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / folder / path.name)
        sums.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
        print(f"{folder}/{path.name}  {path.stat().st_size:,} bytes")
    (target / "SHA256SUMS").write_text("".join(sorted(sums, key=lambda line: line.split()[1])), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
