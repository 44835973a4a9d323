#!/usr/bin/env python3
"""Time `oomph report` side by side with other ways to read the same snapshot.

Makes the inputs under target/bench/, runs every tool in interleaved rounds with the page
cache warm, and writes bench/results/YYYY-MM-DD.md. See bench/README.md.

Exit code 1: on the small file oomph is less than 8 times as fast as pickle.load with gc
off, or its peak memory exceeds the size of the file. Exit code 2: something did not run.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCH = "2.11.0"
LARGE_EVENTS = 8_400_000
BETWEEN_EVENTS = (900_000, 1_800_000, 4_000_000)
NEEDED_RATIO = 8

# os._exit leaves at once: freeing all the objects again is not counted against CPython
LOAD = "import os, pickle, sys; s = pickle.load(open(sys.argv[1], 'rb')); os._exit(0)"
LOAD_NO_GC = "import gc; gc.disable(); " + LOAD


def fail(message):
    print(f"run.py: {message}", file=sys.stderr)
    sys.exit(2)


def measure(command):
    """Run a command; wall seconds and peak resident bytes."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read()  # until the child ends
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        text = errors.decode(errors="replace").strip()
        fail(f"exit code {child.returncode} from {shlex.join(command)}\n{text}")
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, usage.ru_maxrss * unit


def compare(tools, rounds):
    """Run each tool once a round; [(name, shown command, seconds, peak bytes)]."""
    taken = {name: [] for name, _, _ in tools}
    for number in range(rounds):
        for name, command, _ in tools:
            taken[name].append(measure(command))
            print(f"  round {number + 1}: {name}: {taken[name][-1][0]:.3f} s", file=sys.stderr)
    return [(name, shown, [t[0] for t in taken[name]], max(t[1] for t in taken[name])) for name, _, shown in tools]


def tools_for(file, oomph, viz, gc_on):
    """(name, command, the command as shown in the report) of each tool for one file."""
    python = sys.executable
    base = os.path.basename(file)
    tools = [
        ("dd", ["dd", f"if={file}", "of=/dev/null", "bs=1M"], f"dd if={base} of=/dev/null bs=1M"),
        ("oomph report", [oomph, "report", file], f"oomph report {base}"),
        (
            "pickle.load, gc off",
            [python, "-c", LOAD_NO_GC, file],
            f'python3 -c "{LOAD_NO_GC}" {base}',
        ),
    ]
    if gc_on:
        tools.append(("pickle.load, gc on", [python, "-c", LOAD, file], f'python3 -c "{LOAD}" {base}'))
    if viz:
        tools.append(
            (
                "PyTorch _memory_viz stats",
                [python, viz, "stats", file],
                f"python3 torch/cuda/_memory_viz.py stats {base}",
            )
        )
    return tools


def get_memory_viz(work):
    """PyTorch's own reader. It is one file that runs without the rest of torch, so only that
    file is kept, from the macOS wheel: the smallest (80 MB), with the same file in it."""
    path = os.path.join(work, f"torch-{TORCH}", "torch", "cuda", "_memory_viz.py")
    if not os.path.exists(path):
        wheels = os.path.join(work, "wheel")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
        pip += ["--only-binary=:all:", "--platform", "macosx_11_0_arm64"]
        pip += ["--python-version", "3.11", f"torch=={TORCH}"]
        run(pip)
        (wheel,) = os.listdir(wheels)
        # in a process of its own: what this one holds would show in the children's peaks
        unzip = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(*sys.argv[2:])"
        target = os.path.join(work, f"torch-{TORCH}")
        run([sys.executable, "-c", unzip, os.path.join(wheels, wheel)] + ["torch/cuda/_memory_viz.py", target])
        shutil.rmtree(wheels)
    return path


def run(command):
    if subprocess.call(command) != 0:
        fail(f"could not run {shlex.join(command)}")


def make_input(base, path, events):
    """Repeat the base until `events` events; 1 gives the base itself, byte for byte.
    What grow.py says of the file is kept beside it, for the report."""
    if not os.path.exists(path):
        grow = os.path.join(ROOT, "bench", "grow.py")
        command = [sys.executable, grow, base, path + ".part", "--events", str(events)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            fail(f"could not run {shlex.join(command)}")
        with open(path + ".txt", "w") as file:
            file.write(done.stdout.rpartition(": ")[2])
        os.rename(path + ".part", path)
    return path


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else "unknown"


def field(path, name):
    """The value of the first `name: value` line of a file under /proc."""
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return ""


def machine():
    cpu = field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    memory = field("/proc/meminfo", "MemTotal").split()
    memory = f"{int(memory[0]) / 2**20:.1f} GiB" if memory else "unknown"
    return f"{cpu}, {os.cpu_count()} cores, {memory} memory, {platform.system()}"


def ratio(of, to):
    return f"{of / to:.1f}" if of / to < 99.5 else f"{of / to:.0f}"


def table(file, results, rounds, floor):
    # a peak at the floor is only an upper bound, so what is divided by it a lower one
    oomph = next(r for r in results if r[0] == "oomph report")
    with open(file + ".txt") as about:
        contents = about.read().strip()
    lines = [
        f"## {os.path.basename(file)}",
        "",
        f"{contents}; {rounds} rounds.",
        "",
        "| | min s | median s | min ÷ oomph | median ÷ oomph | peak MB | peak ÷ oomph |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, _, seconds, peak in results:
        median = statistics.median(seconds)
        if peak <= floor:
            peaks = f"≤ {peak / 1e6:.1f} | "
        else:
            peaks = f"{peak / 1e6:.1f} | {'≥ ' if oomph[3] <= floor else ''}{ratio(peak, oomph[3])}"
        lines.append(
            f"| {name} | {min(seconds):.3f} | {median:.3f} "
            f"| {ratio(min(seconds), min(oomph[2]))} "
            f"| {ratio(median, statistics.median(oomph[2]))} | {peaks} |"
        )
    lines += ["", "```sh", *(shown for _, shown, _, _ in results), "```", ""]
    return lines


def scaling(oomph, files, rounds):
    """Time and memory of `oomph report` against the number of events; lines for the report."""
    taken = {file: [] for file in files}
    for file in files:
        measure(["dd", f"if={file}", "of=/dev/null", "bs=1M"])
    for _ in range(rounds):
        for file in files:
            taken[file].append(measure([oomph, "report", file]))
    lines = [
        "## oomph report by number of events",
        "",
        f"{rounds} rounds.",
        "",
        "| events | MB | min s | median s | min µs an event | peak MB |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for file in files:
        with open(file + ".txt") as about:
            events = int(about.read().split(", ")[1].split()[0].replace(",", ""))
        seconds = [t[0] for t in taken[file]]
        lines.append(
            f"| {events:,} | {os.path.getsize(file) / 1e6:.0f} | {min(seconds):.3f} "
            f"| {statistics.median(seconds):.3f} | {min(seconds) / events * 1e6:.3f} "
            f"| {max(t[1] for t in taken[file]) / 1e6:.0f} |"
        )
    return lines + [""]


def replaying(args, file, rounds):
    """Speed of the allocator model: (checks as (passed, words), lines for the report)."""
    done = subprocess.run([args.replay, file, str(rounds)], capture_output=True, text=True, check=True)
    taken = json.loads(done.stdout)
    events = taken["events"]
    lines = [
        "## oomph simulate",
        "",
        f"One replay of {events:,} events, on one core, without reading the file; {rounds} rounds.",
        "",
        "| settings | min s | median s | M events/s, fastest | median |",
        "|---|--:|--:|--:|--:|",
    ]
    rows = {"(following the record, as --verify does)": taken["follow"]}
    rows |= {name or "PyTorch's defaults": figures for name, figures in taken["replay"].items()}
    for name, figures in rows.items():
        fastest, median = figures["fastest"], figures["median"]
        lines.append(f"| {name} | {fastest:.4f} | {median:.4f} | {events / fastest / 1e6:.1f} | {events / median / 1e6:.1f} |")
    searches = [measure([args.oomph, "simulate", "--search", "--json", file])[0] for _ in range(rounds)]
    lines += [
        "",
        f"`oomph simulate --search`, 16 settings, the whole process: {min(searches):.2f} s,"
        f" median {statistics.median(searches):.2f} s.",
        "",
    ]
    rate = events / taken["replay"][""]["median"] / 1e6
    return [
        (rate >= 10, f"{rate:.1f} million events a second under PyTorch's defaults (median; at least 10 needed)"),
        (statistics.median(searches) < 2, f"{statistics.median(searches):.2f} s for 16 settings (median; below 2 needed)"),
    ], lines


def check(file, results, more):
    """The promises, on the small file; (passed, lines for the report)."""
    by_name = {r[0]: r for r in results}
    oomph = by_name["oomph report"]
    fast = min(by_name["pickle.load, gc off"][2]) / min(oomph[2])
    size = os.path.getsize(file)
    passed = [fast >= NEEDED_RATIO, oomph[3] <= size]
    words = ["ok" if p else "FAILED" for p in passed]
    return all(passed) and all(p for p, _ in more), [
        "## Checks, on the small file",
        "",
        f"- {words[0]}: {fast:.1f} times as fast as pickle.load with gc off (minimum to minimum; at least {NEEDED_RATIO} needed)",
        f"- {words[1]}: peak memory {oomph[3] / 1e6:.1f} MB (at most the file's size, {size / 1e6:.1f} MB)",
        *(f"- {'ok' if p else 'FAILED'}: {words}" for p, words in more),
        "",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--oomph", default=os.path.join(ROOT, "target", "dist", "oomph"))
    add("--replay", default=os.path.join(ROOT, "target", "dist", "examples", "replay"))
    add("--base", default=os.path.join(ROOT, "fixtures", "large", "gpt2_150_steps.pickle.xz"))
    add("--work", default=os.path.join(ROOT, "target", "bench"), help="where inputs are kept")
    add("--results", default=os.path.join(ROOT, "bench", "results"))
    add("--rounds", type=int, default=5, help="on the small file")
    add("--large-rounds", type=int, default=3, help="on the large file; 0 leaves it out")
    add("--large-peers", action="store_true", help="all tools on the large file too")
    add("--no-torch", action="store_true", help="leave out PyTorch's own reader")
    args = parser.parse_args()

    if not os.access(args.oomph, os.X_OK):
        fail(f"no program at {args.oomph}; build it with: cargo build --profile dist")
    if not os.access(args.replay, os.X_OK):
        fail(f"no program at {args.replay}; build it with: cargo build --profile dist --example replay")
    os.makedirs(args.work, exist_ok=True)
    viz = None if args.no_torch else get_memory_viz(args.work)
    small = make_input(args.base, os.path.join(args.work, "gpt2_150_steps.pickle"), 1)
    jobs = [(small, args.rounds, viz, True)]
    if args.large_rounds:
        path = os.path.join(args.work, "gpt2_grown.pickle")
        large = make_input(args.base, path, LARGE_EVENTS)
        between = [make_input(args.base, os.path.join(args.work, f"grown_{events}.pickle"), events) for events in BETWEEN_EVENTS]
        jobs.append((large, args.large_rounds, viz if args.large_peers else None, args.large_peers))

    today = datetime.date.today().isoformat()
    floor = measure(["true"])[1] * 1.05  # a child starts with the peak of this process
    report = [
        f"# Benchmark of {today}",
        "",
        f"- Machine: {machine()}",
        f"- oomph: {first_line([args.oomph, '--version'])}",
        f"- Python: {platform.python_version()}",
        f"- PyTorch: {'left out' if args.no_torch else TORCH + ', _memory_viz.py alone'}",
        "- Wall seconds of the whole process; the tools take turns, the page cache is warm.",
        "- Peak is the largest resident set of any round; ≤ marks one too small to distinguish from that of `true`.",
        "",
    ]
    ok = True
    for file, rounds, file_viz, gc_on in jobs:
        print(file, file=sys.stderr)
        measure(["dd", f"if={file}", "of=/dev/null", "bs=1M"])  # warms the page cache
        results = compare(tools_for(file, args.oomph, file_viz, gc_on), rounds)
        report += table(file, results, rounds, floor)
        if file == small:
            more, replays = replaying(args, file, rounds)
            report += replays
            ok, checks = check(file, results, more)
    if args.large_rounds:
        report += scaling(args.oomph, [small, *between, large], args.large_rounds)
    text = "\n".join(report + checks)

    os.makedirs(args.results, exist_ok=True)
    with open(os.path.join(args.results, f"{today}.md"), "w", encoding="utf-8") as out:
        out.write(text)
    print(text)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
