"""What watching costs a program: one run, with somebody watching and without, in turns.

    python bench/watch.py [OOMPH] [PYTHON]

Needs a GPU. A program trains under `oomph run` and notes when each step ended. Every few seconds `oomph watch` (four questions a
second, with stacks) and `oomph exporter` (one a second) begin or end. Means are compared, not medians: a pause counts.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PHASE = 6.0
PHASES = 10
MODEL = """
import sys, time, torch

width, layers, batch = map(int, sys.argv[1:4])
layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, device="cuda", dtype=torch.bfloat16)
model = torch.nn.TransformerEncoder(layer, layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(batch, 256, width, device="cuda", dtype=torch.bfloat16)

def step():
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
"""
PROGRAM = (
    MODEL
    + """
ends = open("ends", "w", buffering=1)
end = time.time() + float(sys.argv[4])
while time.time() < end:
    step()
    ends.write(f"{time.time()}\\n")
"""
)
COSTS = (
    MODEL
    + """
import json, os, subprocess, threading
recorder = next(module for name, module in sys.modules.items() if name.endswith(".recording.recorder"))

def median(count, work):
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return 1e6 * sorted(taken)[count // 2]

def answer(asks_driver=False):
    live._counted_at = 0.0
    live._driver_at = 0.0 if asks_driver else time.monotonic()
    json.dumps(live._answer({"since": running.count, "era": live._era}))

def cpu(thread):
    with open(f"/proc/self/task/{thread}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

for _ in range(20):
    step()
running = recorder.active
live = running._live
stacks = median(50, running.history.live_stacks)
print(f"an answer {median(2000, answer):.0f} us, with the driver {median(200, lambda: answer(True)):.0f} us, stacks {stacks:.0f} us")
thread = next(each.native_id for each in threading.enumerate() if each.name == "oomph live")
commands = (["watch", "--json", str(os.getpid())], ["exporter", "--listen", "127.0.0.1:0"])
watchers = [subprocess.Popen([sys.argv[4], *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for words in commands]
time.sleep(2)
before, began = cpu(thread), time.time()
while time.time() - began < 40:
    step()
took = time.time() - began
share = (cpu(thread) - before) / took + stacks / 1e6 / 2
print(f"while watched, {100 * share:.2f}% of the time: the thread that answers, and stacks every two seconds")
for watcher in watchers:
    watcher.kill()
"""
)
WORKLOADS = {"short steps": (256, 2, 4), "long steps": (1024, 12, 32)}


def measure(oomph: str, python: str, sizes: tuple[int, int, int]) -> tuple[list[float], list[float]]:
    """The seconds of each step, quiet and watched."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "train.py").write_text(PROGRAM)
        env = {**os.environ, "OOMPH_RUNTIME_DIR": str(pathlib.Path(folder, "s"))}
        seconds = PHASE * PHASES + 5
        command = [oomph, "run", "--python", python, "train.py", *map(str, sizes), str(seconds)]
        program = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)
        ends_file = pathlib.Path(folder, "ends")
        while not ends_file.exists() or len(ends_file.read_text().splitlines()) < 20:
            time.sleep(0.1)
        marks = [time.time()]
        for phase in range(PHASES):
            watchers = []
            if phase % 2:
                for words in (["watch", "--json", str(program.pid)], ["exporter", "--listen", "127.0.0.1:0"]):
                    watchers.append(
                        subprocess.Popen([oomph, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    )
            time.sleep(PHASE)
            for watcher in watchers:
                watcher.kill()
                watcher.wait()
            marks.append(time.time())
        program.wait()
        ends = [float(line) for line in ends_file.read_text().splitlines()]
    taken: tuple[list[float], list[float]] = ([], [])
    for before, after in zip(ends, ends[1:]):
        for phase, (begin, end) in enumerate(zip(marks, marks[1:])):
            # Starting a watcher takes the machine's time, not the program's: the first half second of a phase is left out.
            if begin + 0.5 < before and after < end - 0.1:
                taken[phase % 2].append(after - before)
    return taken


def costs(oomph: str, python: str) -> None:
    """What the recorder itself does for whoever watches, without the noise of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "train.py").write_text(COSTS)
        env = {**os.environ, "OOMPH_RUNTIME_DIR": str(pathlib.Path(folder, "s"))}
        sizes = map(str, WORKLOADS["long steps"])
        command = [oomph, "run", "--python", python, "train.py", *sizes, oomph]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
        print(*done.stdout.splitlines()[:2], sep="\n", flush=True)


def main() -> None:
    oomph = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "target/dist/oomph")
    python = sys.argv[2] if len(sys.argv) > 2 else sys.executable
    print("| steps | quiet, ms (n) | watched, ms (n) | mean | median |")
    print("|---|---|---|---|---|")
    for name, sizes in WORKLOADS.items():
        quiet, watched = measure(oomph, python, sizes)
        means = [1000 * statistics.mean(part) for part in (quiet, watched)]
        medians = [1000 * statistics.median(part) for part in (quiet, watched)]
        change = [f"{100 * (b / a - 1):+.2f}%" for a, b in (means, medians)]
        print(
            f"| {name} | {means[0]:.3f} ({len(quiet)}) | {means[1]:.3f} ({len(watched)}) | {change[0]} | {change[1]} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
