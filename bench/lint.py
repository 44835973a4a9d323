"""`oomph lint` beside `ruff check`, over the same trees, in turns: medians and the ratio.

    python3 bench/lint.py [TREE …]        default: the packages torch, transformers and torchvision of target/venv

Needs `ruff` (pip install ruff) and a release build. ruff runs its default rules without its cache; both read everything anew.
"""

import argparse
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TURNS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="*", type=pathlib.Path)
    trees = parser.parse_args().trees or installed()
    ruff = shutil.which("ruff") or shutil.which("ruff", path=str(ROOT / "target/venv/bin"))
    oomph = ROOT / "target/dist/oomph"
    if not ruff or not oomph.exists():
        sys.exit("needs ruff (pip install ruff) and target/dist/oomph (cargo build --profile dist --bin oomph)")
    commands = {
        "ruff check": [ruff, "check", "--isolated", "--no-cache", "--quiet", "--exit-zero", "--output-format", "concise"],
        "oomph lint": [str(oomph), "lint", "--exit-zero", "--json"],
    }
    print(f"| tree | files | {' | '.join(commands)} | ratio |\n|---|---|{'---|' * (len(commands) + 1)}")
    for tree in trees:
        files = sum(1 for _ in tree.rglob("*.py"))
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(TURNS):
            for name, command in commands.items():
                begin = time.perf_counter()
                subprocess.run([*command, str(tree)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                times[name].append(time.perf_counter() - begin)
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        columns = " | ".join(f"{median * 1000:.0f} ms" for median in medians.values())
        print(f"| {tree.name} | {files:,} | {columns} | {medians['oomph lint'] / medians['ruff check']:.2f} |", flush=True)


def installed() -> list[pathlib.Path]:
    packages = next((ROOT / "target/venv/lib").glob("python3*")) / "site-packages"
    return [packages / name for name in ("torch", "transformers", "torchvision")]


if __name__ == "__main__":
    main()
