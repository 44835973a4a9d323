"""What recording adds to a CPU-bound step, in instructions: they hardly vary from run to run, and need no GPU.

    python bench/instructions.py --oomph target/debug/oomph      with valgrind, torch and the wheel

The step of `bench/recording.py` runs under callgrind on an emulated GPU: without a recorder, with PyTorch's history, and recorded:
right after recording begins, and again once Python has specialized the code that calls the functions replaced by the recorder.
Not counted are reallocations of PyTorch's list of events, and what the recorder does because of the time: the counters are read
in every eighth step, and neither the host's memory nor the driver is asked.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 64
"""One in this many repeated steps is recorded with stacks."""
WARM_UP = 8
PYTHON_WARMS_UP = 250


def counted(callgrind: pathlib.Path, name: str) -> int:
    """Instructions in a part of the program, without reallocations of PyTorch's list of events."""
    (path,) = (path for path in callgrind.parent.glob("callgrind.*") if f"Trigger: dump {name}\n" in path.read_text()[:2000])
    out = subprocess.run(["callgrind_annotate", "--threshold=100", path], capture_output=True, text=True, check=True).stdout
    lines = [(line.split()[0].replace(",", ""), line) for line in out.splitlines() if line.strip()]
    total = next(int(count) for count, line in lines if "PROGRAM TOTALS" in line)
    longer = [int(count) for count, line in lines if count.isdigit() and "TraceEntry" in line and "_M_realloc_insert" in line]
    return total - sum(longer[:1])


def measure() -> None:
    """The program under callgrind."""
    import torch

    from oomph import record
    from oomph.recording import host_memory, recorder, uncounted
    from recording import begin, transformer

    # Under callgrind, everything takes a hundred times as long, so work that is triggered by elapsed time is disabled.
    uncounted._MAX_US = 1 << 60
    recorder._NVML_INTERVAL_SECONDS = 1e9
    host_memory.HostMemory.begin = lambda _: None  # type: ignore[method-assign]
    torch.set_num_threads(1)
    step = transformer(8)

    def run(name: str, before: int = WARM_UP) -> None:
        for _ in range(before):
            step()
        control("-i", "on")
        for _ in range(STEPS):
            step()
        control("-i", "off")
        control("-d", name)

    def control(*options: str) -> None:
        subprocess.run(["callgrind_control", *options, str(os.getpid())], stdout=subprocess.DEVNULL, check=True)

    run("bare", PYTHON_WARMS_UP)
    begin("events")
    run("events")
    torch.cuda.memory._record_memory_history(enabled=None)
    with tempfile.TemporaryDirectory() as folder, record(folder, holders=False):
        run("soon")
        run("later", PYTHON_WARMS_UP)
        sys.stdout.flush()
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--oomph", type=pathlib.Path, default=HERE.parent / "target" / "debug" / "oomph")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return measure()
    sys.path.insert(0, str(HERE.parent / "field"))
    from run import Emulated

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        side = folder / "side"
        side.mkdir()
        environment = {**os.environ, **Emulated(arguments.oomph.resolve(), "h200", folder).variables(side)}
        callgrind = folder / "callgrind"
        options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={callgrind}"]
        command = ["valgrind", *options, sys.executable, __file__, "--measure"]
        subprocess.run(command, env={**environment, "PYTHONHASHSEED": "0"}, cwd=side, check=True, stderr=subprocess.DEVNULL)
        bare = counted(callgrind, "bare")
        print(f"{'way':48}{'per step':>14}")
        print(f"{'without a recorder':48}{bare // STEPS:14,}")
        ways = {
            "events": "PyTorch's history without stacks",
            "soon": f"`oomph.record()`, {WARM_UP} steps after it has begun",
            "later": f"`oomph.record()`, {PYTHON_WARMS_UP} steps later",
        }
        for way, words in ways.items():
            of = counted(callgrind, way)
            print(f"{words:48}{of // STEPS:14,}  {of / bare - 1:+.2%}")


if __name__ == "__main__":
    main()
