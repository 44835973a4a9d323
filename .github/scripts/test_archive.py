"""Smoke test of a stand-alone archive: python .github/scripts/test_archive.py ARCHIVE

Unpacks it, checks what it contains, and lets the program explain a snapshot of this repository."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import ROOT, workspace_version

SNAPSHOT = ROOT / "fixtures/zoo/leak_infer_outputs.pickle.xz"


def output(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, encoding="utf-8", timeout=60)
    if done.returncode:
        sys.exit(f"FAILED: {command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    archive = Path(arguments[0])
    target = archive.name.removeprefix("oomph-").removesuffix(".tar.gz").removesuffix(".zip")
    program = "oomph.exe" if "windows" in target else "oomph"
    needed = {program, "LICENSE-MIT", "LICENSE-APACHE", "README.md", "CHANGELOG.md"}
    if target.endswith("-linux-gnu"):
        needed |= {"liboomph_emulator.so", "liboomph_tracer.so"}
    with tempfile.TemporaryDirectory() as scratch:
        shutil.unpack_archive(archive, scratch)
        folder = Path(scratch) / f"oomph-{target}"
        contained = {path.name for path in folder.iterdir()}
        if contained != needed:
            sys.exit(f"FAILED: {archive.name} contains {sorted(contained)}, expected {sorted(needed)}")
        version = output(folder / program, "--version").strip()
        if version != f"oomph {workspace_version()}":
            sys.exit(f"FAILED: the program is {version}, expected {workspace_version()}")
        if "leak_infer_outputs.py:9" not in output(folder / program, "report", SNAPSHOT):
            sys.exit("FAILED: the report does not name the line of the leak")
    print(f"ok: {archive.name}, {archive.stat().st_size:,} bytes, {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
