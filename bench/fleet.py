#!/usr/bin/env python3
"""A simulated job of many ranks, made from a real recording: what is injected, and whether `oomph fleet` finds it.

    fleet.py make DIR --ranks 2048 [--clean] [--base RECORDING]   writes the job, and what was injected to DIR.truth.json
    fleet.py judge DIR [--oomph PATH]                             every fault found, none invented; exit code 1 otherwise
    fleet.py time DIR [--oomph PATH]                              wall time, memory and rate, against `cat` of the same bytes

Every rank is the recorded history with memory added at its beginning: a few per mille that differ from rank to rank, and
on the last pipeline stage the `lm_head`. Faults, each on other ranks: a rank that holds more than its peers, a
node whose ranks do, a leak, another release of torch, other allocator settings, another process on a node's GPUs, ranks
that run out of memory one after the other, files that are cut short, empty or no snapshots, and ranks without a file.
"""

import argparse
import json
import lzma
import os
import pickle
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "fixtures/answers/clean_short_pretraining"
OOMPH = ROOT / "target/release/oomph"
LARGE_JOB_RANKS = 128
"""Fewer ranks have two stages, more have four: a stage has to have several nodes."""
RANKS_PER_NODE = 8
MIB = 1 << 20
BLOCK = 2 * MIB
"""Every amount is a multiple: segments of large blocks are."""
FREE_SPACE = 1 << 45
"""Addresses that no recording has."""
HEAD = ("model.py", 44, "lm_head")
NOISE = ("data.py", 12, "prefetch")
EXTRA = ("cache.py", 91, "remember")
NODE = ("topology.py", 7, "register")
LEAK = ("train.py", 88, "log")
JOB = "simulated-27"
NO_SPACE = "OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."


def stages_of(ranks: int) -> int:
    return 4 if ranks >= LARGE_JOB_RANKS else 2


@dataclass
class Truth:
    """What was injected, by rank."""

    ranks: int
    stage_bytes: int = 0
    extra: list[int] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    leaks: list[int] = field(default_factory=list)
    torch: list[int] = field(default_factory=list)
    settings: list[int] = field(default_factory=list)
    crowded: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    """In the order of time."""
    broken: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


class Base:
    """The recording that every rank is made from."""

    def __init__(self, folder: Path) -> None:
        packed = folder / "rank0.pickle.xz"
        self.snapshot = pickle.loads(lzma.decompress(packed.read_bytes()))
        self.rank = json.loads((folder / "rank0.json").read_text())
        self.meta = json.loads((folder / "meta.json").read_text())
        self.labels = (folder / "rank0.labels").read_bytes()
        self.steps = [json.loads(line) for line in (folder / "rank0.steps.jsonl").read_text().splitlines()]
        for step in self.steps:
            for device in step["devices"]:
                # What else ran on the recorded machine is not part of the job.
                device.pop("used", None)
                device.pop("others", None)
        self.peak = self._peak()

    def _peak(self) -> int:
        allocated = peak = 0
        for event in self.snapshot["device_traces"][0]:
            if event["action"] == "alloc":
                allocated += event["size"]
            elif event["action"] == "free_requested":
                allocated -= event["size"]
            peak = max(peak, allocated)
        return peak

    def share(self, part: float) -> int:
        """A part of the peak, in whole blocks."""
        return max(1, int(self.peak * part) // BLOCK) * BLOCK


@dataclass
class Rank:
    """One rank under construction."""

    number: int
    ranks: int
    held: list[tuple[tuple[str, int, str], int]] = field(default_factory=list)
    leak: int = 0
    torch: str | None = None
    settings: str = ""
    other_processes: int = 0
    failed_at: int | None = None
    ended: str = "finished"

    @property
    def stages(self) -> int:
        return stages_of(self.ranks)

    @property
    def stage(self) -> int:
        return self.number * self.stages // self.ranks

    @property
    def node(self) -> str:
        return f"node{self.number // RANKS_PER_NODE:04}"

    def write(self, base: Base, folder: Path) -> None:
        stem = folder / f"rank{self.number}"
        snapshot, added = self._snapshot(base)
        stem.with_suffix(".pickle").write_bytes(pickle.dumps(snapshot, protocol=4))
        stem.with_suffix(".labels").write_bytes(base.labels)
        lines = []
        for index, step in enumerate(base.steps, 1):
            device = dict(step["devices"][0])
            device["allocations"] += added + (index if self.leak else 0)
            reserved = device["reserved"] + sum(size for _, size in self.held)
            device |= {"reserved": reserved, "used": reserved + 600 * MIB + self.other_processes, "others": self.other_processes}
            lines.append(json.dumps(step | {"devices": [device]}))
        stem.with_suffix(".steps.jsonl").write_text("\n".join(lines) + "\n")
        count = base.rank["allocations"]["0"] + added + (len(base.steps) if self.leak else 0)
        replicas = self.ranks // self.stages
        place = {
            "id": JOB,
            "node": self.node,
            "rank": self.number,
            "local_rank": self.number % RANKS_PER_NODE,
            "world_size": self.ranks,
            "dimensions": [
                {"name": "pp", "index": self.stage, "size": self.stages},
                {"name": "dp", "index": self.number % replicas, "size": replicas},
            ],
        }
        rank = base.rank | {"rank": self.number, "allocations": {"0": count}, "job": place, "ended": self.ended}
        if self.torch:
            rank["torch"] = self.torch
        if self.failed_at is not None:
            rank |= {"ended": "failed", "exception": NO_SPACE}
        stem.with_suffix(".json").write_text(json.dumps(rank))

    def _snapshot(self, base: Base) -> tuple[dict, int]:
        """The snapshot, and the number of allocations that were added before the first step."""
        snapshot = dict(base.snapshot)
        events, segments = [], list(base.snapshot["segments"])
        recorded = base.snapshot["device_traces"][0]
        address = FREE_SPACE

        def hold(line: tuple[str, int, str], size: int, time_us: int) -> None:
            nonlocal address
            file, number, function = line
            frames = [{"name": function, "filename": f"/job/{file}", "line": number}]
            event = {
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": time_us,
                "compile_context": "N/A",
                "user_metadata": "",
            }
            events.extend({"action": action, **event, "frames": frames} for action in ("segment_alloc", "alloc"))
            block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
            sizes = dict.fromkeys(("total_size", "allocated_size", "active_size", "requested_size"), size)
            like = {"device": 0, "address": address, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0)}
            segments.append({**like, **sizes, "is_expandable": False, "frames": frames, "blocks": [block]})
            address += 2 * size

        begin = recorded[0]["time_us"]
        for line, size in self.held:
            hold(line, size, begin)
        added = len(self.held)
        ends = [step["devices"][0]["allocations"] for step in base.steps] if self.leak else []
        made = 0
        for event in recorded:
            if ends and made == ends[0] and event["action"] == "alloc":
                hold(LEAK, self.leak, event["time_us"])
                ends.pop(0)
            made += event["action"] == "alloc"
            events.append(event)
        for _ in ends:
            hold(LEAK, self.leak, recorded[-1]["time_us"])
        if self.failed_at is not None:
            failed = dict(recorded[-1], action="oom", size=512 * MIB, device_free=0, time_us=self.failed_at)
            failed["frames"] = [{"name": EXTRA[2], "filename": f"/job/{EXTRA[0]}", "line": EXTRA[1]}]
            failed.pop("addr", None)
            events.append(failed)
        snapshot |= {"device_traces": [events], "segments": segments}
        snapshot["allocator_settings"] = base.snapshot["allocator_settings"] | {"PYTORCH_CUDA_ALLOC_CONF": self.settings}
        return snapshot, added


def make(folder: Path, ranks: int, base: Base, is_clean: bool) -> Truth:
    chance = random.Random(ranks)
    truth = Truth(ranks, stage_bytes=base.share(0.5))
    job = [Rank(number, ranks) for number in range(ranks)]
    for rank in job:
        rank.held.append((NOISE, BLOCK))
        if chance.random() < 0.5:
            rank.held.append((NOISE, BLOCK))
        if rank.stage == rank.stages - 1:
            rank.held.append((HEAD, truth.stage_bytes))
    if not is_clean:
        inject(job, truth, base, chance)
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps(base.meta))
    for rank in job:
        if rank.number not in truth.missing:
            rank.write(base, folder)
    damage(folder, truth, chance)
    Path(f"{folder}.truth.json").write_text(json.dumps(asdict(truth)))
    return truth


def inject(job: list[Rank], truth: Truth, base: Base, chance: random.Random) -> None:
    ranks = len(job)
    few = max(1, ranks // 256)
    nodes = chance.sample(sorted({rank.node for rank in job}), 2)
    truth.nodes, truth.crowded = nodes[:1], nodes[1:]
    for rank in job:
        if rank.node in truth.nodes:
            rank.held.append((NODE, base.share(0.15)))
        if rank.node in truth.crowded:
            rank.other_processes = 12 << 30
    free = [rank for rank in job if rank.node not in nodes]
    chance.shuffle(free)

    def take(count: int) -> list[Rank]:
        return [free.pop() for _ in range(count)]

    for rank in take(few):
        rank.held.append((EXTRA, base.share(0.3)))
        truth.extra.append(rank.number)
    for rank in take(few):
        rank.leak = base.share(0.04)
        truth.leaks.append(rank.number)
    for rank in take(few):
        rank.torch = "2.10.0+cu130"
        truth.torch.append(rank.number)
    for rank in take(few):
        rank.settings = "max_split_size_mb:512"
        truth.settings.append(rank.number)
    end = base.snapshot["device_traces"][0][-1]["time_us"]
    for index, rank in enumerate(take(max(2, few))):
        rank.failed_at = end + (index + 1) * 1000
        rank.held.append((EXTRA, base.share(0.6 if index == 0 else 0.1)))
        truth.failed.append(rank.number)
    truth.broken = sorted(rank.number for rank in take(max(3, ranks // 50)))
    truth.missing = sorted(rank.number for rank in take(max(1, ranks // 500)))
    for rank in job:
        if rank.failed_at is None:
            rank.ended = "killed"
    for numbers in (truth.extra, truth.leaks, truth.torch, truth.settings):
        numbers.sort()


def damage(folder: Path, truth: Truth, chance: random.Random) -> None:
    for index, number in enumerate(truth.broken):
        path = folder / f"rank{number}.pickle"
        whole = path.read_bytes()
        path.write_bytes([whole[: chance.randrange(1000, len(whole) - 1000)], b"", b"not a pickle\n"][index % 3])


def judge(answer: dict, truth: Truth) -> list[str]:
    """What `oomph fleet --json` misses, and what it invents."""
    wrong = []

    def expect(what: str, found: object, injected: object) -> None:
        if found != injected:
            wrong.append(f"{what}: found {found}, injected {injected}")

    expect("missing ranks", answer["missing"], truth.missing)
    expect("broken ranks", sorted(broken["rank"] for broken in answer["broken"]), truth.broken)
    expect("dimensions", [dimension["name"] for dimension in answer["dimensions"]], ["pp"])
    for value in answer["dimensions"][0]["values"] if answer["dimensions"] else []:
        is_last = value["value"] == str(stages_of(truth.ranks) - 1)
        difference, bytes_ = value["difference"], truth.stage_bytes if is_last else 0
        if abs(difference["bytes"] - bytes_) > 2 * BLOCK:
            wrong.append(f"pp {value['value']}: {difference['bytes']} bytes more, injected {bytes_}")
        if is_last and (difference["site"] or {}).get("function") != HEAD[2]:
            wrong.append(f"the last stage: {difference['site']} makes the difference, injected {HEAD}")
    alone = {rank: line for ranks, line in ((truth.extra, EXTRA), (truth.leaks, LEAK)) for rank in ranks}
    found = {
        one["ranks"][0]["rank"]: (one["difference"]["site"] or {}).get("line") for one in answer["deviations"] if not one["node"]
    }
    expect("ranks out of line, and their lines", found, {rank: line[1] for rank, line in alone.items()})
    found_nodes = {one["node"]: (one["difference"]["site"] or {}).get("line") for one in answer["deviations"] if one["node"]}
    expect("nodes out of line, and their lines", found_nodes, dict.fromkeys(truth.nodes, NODE[1]))
    leaks = {rank: one["site"]["line"] for one in answer["findings"] if one["kind"] == "leak" for rank in one["ranks"]}
    expect("leaks, and their lines", leaks, dict.fromkeys(truth.leaks, LEAK[1]))
    variants = {one["name"]: sorted(rank for value in one["values"][1:] for rank in value["ranks"]) for one in answer["variants"]}
    expect(
        "settings", variants, {name: ranks for name, ranks in (("allocator", truth.settings), ("torch", truth.torch)) if ranks}
    )
    expect("other processes", [one["node"] for one in answer["other_processes"]], truth.crowded)
    failed = [rank["rank"] for rank in answer["failure"]["ranks"]] if answer["failure"] else []
    expect("ranks that ran out, by time", failed, truth.failed)
    if truth.failed and answer["failure"]:
        line = ((answer["failure"]["difference"] or {}).get("site") or {}).get("line")
        expect("what filled the first", line, EXTRA[1])
    return wrong


def loaded_truth(folder: Path) -> Truth:
    return Truth(**json.loads(Path(f"{folder}.truth.json").read_text()))


def measured(command: list[str | Path]) -> tuple[float, float, int]:
    """Seconds of wall time and of processor time, and the most memory in bytes."""
    begun = time.perf_counter()
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begun
    if status:
        sys.exit(f"{command} failed")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def clock(folder: Path, oomph: Path) -> None:
    files = sorted(folder.glob("*.pickle"))
    size = sum(path.stat().st_size for path in files)
    rows = [("`cat *.pickle`", measured(["sh", "-c", f"cat {folder}/*.pickle > /dev/null"]))]
    for path in folder.glob("*.summary.arrow"):
        path.unlink()
    rows.append(("`oomph fleet`, from the snapshots", measured([oomph, "fleet", folder])))
    done = subprocess.run([oomph, "summarize", folder], capture_output=True, text=True, check=False)
    print(done.stderr.splitlines()[-1])
    rows.append(("`oomph fleet`, from the summaries", measured([oomph, "fleet", folder])))
    print(f"{len(files)} files, {size / 1e9:.2f} GB\n\n| | wall | processor | memory | rate |\n|---|---|---|---|---|")
    for name, (wall, processor, memory) in rows:
        print(f"| {name} | {wall:.2f} s | {processor:.2f} s | {memory / 1e6:.0f} MB | {size / wall / 1e6:.0f} MB/s |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("make", "judge", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--clean", action="store_true", help="stages and noise, but no faults")
    parser.add_argument("--base", type=Path, default=BASE, help="the recording to make ranks from")
    parser.add_argument("--oomph", type=Path, default=OOMPH)
    args = parser.parse_args()
    if args.task == "make":
        make(args.folder, args.ranks, Base(args.base), args.clean)
        return 0
    if args.task == "time":
        clock(args.folder, args.oomph)
        return 0
    done = subprocess.run([args.oomph, "fleet", "--json", args.folder], capture_output=True, text=True, check=True)
    wrong = judge(json.loads(done.stdout), loaded_truth(args.folder))
    print("\n".join(wrong) or "every fault found, none invented")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
