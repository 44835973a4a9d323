#!/usr/bin/env python3
"""Compare predicted jobs with ranks on a real GPU.

    python bench/jobs/compare.py card --json card.json          with a GPU, torch, and nothing of ours
    python bench/jobs/compare.py predict --json predicted.json  with torch and oomph
    python bench/jobs/compare.py table card.json predicted.json

One card stands for the GPU of one rank or of a few. `fake`: a single rank runs, and PyTorch's fake process group answers for
the others. `nccl`: all ranks run on the one card with real NCCL, each as if on a machine of its own (`NCCL_HOSTID`).
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent.parent
PROGRAM = "bench/jobs/transformer.py"
MEDIUM = "--dim 1024 --heads 16 --layers 8 --vocabulary 32000 --tokens 1024 --batch 2"
LLAMA_8B = "--dim 4096 --heads 32 --layers 32 --hidden 14336 --vocabulary 128256 --tokens 4096 --batch 1 --checkpoint"
LLAMA_70B = "--dim 8192 --heads 64 --layers 80 --hidden 28672 --vocabulary 128256 --tokens 2048 --batch 4 --checkpoint"

# How the other ranks are answered, number of ranks, the rank that is compared, arguments.
COMBINATIONS = [
    ("fake", 8, 0, "--parallel fsdp2"),
    ("fake", 8, 7, f"--parallel fsdp2 {MEDIUM}"),
    ("fake", 64, 5, f"--parallel fsdp2 {MEDIUM} --checkpoint"),
    ("fake", 4096, 4095, "--parallel fsdp2"),
    ("fake", 8, 3, f"--parallel fsdp2 {MEDIUM} --dtype float32"),
    ("fake", 8, 1, f"--parallel fsdp1 {MEDIUM}"),
    ("fake", 8, 6, f"--parallel hsdp {MEDIUM}"),
    ("fake", 2, 1, "--parallel tp"),
    ("fake", 8, 0, f"--parallel tp --tp 8 {MEDIUM}"),
    ("fake", 4, 2, f"--parallel tp+sp --tp 4 {MEDIUM}"),
    ("fake", 8, 3, f"--parallel fsdp2+tp --tp 4 {MEDIUM}"),
    ("fake", 4, 0, f"--parallel pp --pp 4 {MEDIUM} --batch 4"),
    ("fake", 4, 2, f"--parallel pp --pp 4 {MEDIUM} --batch 8"),
    ("fake", 4, 3, f"--parallel pp --pp 4 {MEDIUM} --batch 4"),
    ("fake", 2, 0, f"--parallel pp --schedule gpipe {MEDIUM} --batch 4"),
    ("fake", 2, 1, f"--parallel pp --schedule interleaved {MEDIUM}"),
    ("fake", 2, 0, f"--parallel pp --schedule zero-bubble {MEDIUM}"),
    ("fake", 8, 7, f"--parallel pp+fsdp2 {MEDIUM}"),
    ("fake", 8, 0, f"--parallel pp+fsdp2+tp {MEDIUM}"),
    ("fake", 16, 15, f"--parallel pp+fsdp2+tp --pp 4 {MEDIUM} --batch 4"),
    ("fake", 4, 1, f"--parallel cp {MEDIUM}"),
    ("fake", 8, 2, f"--parallel ep {MEDIUM}"),
    ("fake", 8, 0, f"--parallel fsdp2 {LLAMA_8B}"),
    ("fake", 64, 0, f"--parallel pp+fsdp2+tp --pp 4 --tp 4 {LLAMA_70B}"),
    ("fake", 64, 63, f"--parallel pp+fsdp2+tp --pp 4 --tp 4 {LLAMA_70B}"),
    ("nccl", 1, 0, f"--parallel ddp {MEDIUM}"),
    ("nccl", 2, 0, f"--parallel ddp {MEDIUM}"),
    ("nccl", 2, 1, f"--parallel ddp {MEDIUM} --dtype float32"),
    ("nccl", 4, 3, f"--parallel ddp+zero1 {MEDIUM}"),
    ("nccl", 4, 2, f"--parallel fsdp2 {MEDIUM}"),
    ("nccl", 4, 1, f"--parallel fsdp1 {MEDIUM}"),
    ("nccl", 4, 0, f"--parallel hsdp {MEDIUM}"),
    ("nccl", 4, 1, f"--parallel fsdp2+tp {MEDIUM}"),
    ("nccl", 4, 3, f"--parallel pp+fsdp2 {MEDIUM}"),
    ("nccl", 2, 0, f"--parallel pp --schedule interleaved {MEDIUM}"),
    ("nccl", 2, 1, f"--parallel pp --schedule zero-bubble {MEDIUM}"),
    ("nccl", 2, 0, f"--parallel cp {MEDIUM}"),
    ("nccl", 4, 2, f"--parallel ep {MEDIUM}"),
    ("nccl", 2, 1, "--parallel fsdp2 --save DIR"),
    ("nccl", 2, 0, f"--parallel deepspeed --zero 1 {MEDIUM}"),
    ("nccl", 2, 0, f"--parallel deepspeed --zero 2 {MEDIUM}"),
    ("nccl", 2, 0, f"--parallel deepspeed --zero 3 {MEDIUM}"),
]
PEAKS = re.compile(r"rank (\d+): (\d+) allocated, (\d+) reserved")


def name_of(combination):
    answered, world, rank, arguments = combination
    return f"{answered} {world} {rank} {arguments}"


def environment(answered, world, rank, port):
    found = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if answered == "nccl":
        found |= {"NCCL_HOSTID": f"machine{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return found


def on_card(combination, port):
    """Peaks that PyTorch counts for the rank on the card, or what went wrong."""
    answered, world, rank, arguments = combination
    words = shlex.split(arguments) + (["--fake"] if answered == "fake" else [])
    with tempfile.TemporaryDirectory() as folder:
        words = [folder if word == "DIR" else word for word in words]
        ranks = [rank] if answered == "fake" else range(world)
        processes = [
            subprocess.Popen(
                [sys.executable, PROGRAM, *words],
                cwd=ROOT,
                env=environment(answered, world, each, port),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for each in ranks
        ]
        try:
            outputs = [process.communicate(timeout=240)[0] for process in processes]
        except subprocess.TimeoutExpired:
            outputs = ["no end within 240 s"]
        finally:
            for process in processes:
                process.kill()
    for output in outputs:
        for found in PEAKS.finditer(output):
            if int(found[1]) == rank:
                return {"allocated": int(found[2]), "reserved": int(found[3])}
    return {"error": "\n".join(output[-1500:] for output in outputs)}


def predicted(combination, oomph):
    """Peaks of the rank in a predicted job of that many GPUs, with the process groups of the real job."""
    _, world, rank, arguments = combination
    gpus = min(world, 8)
    with tempfile.TemporaryDirectory() as folder:
        words = [folder if word == "DIR" else word for word in shlex.split(arguments)]
        command = [oomph, "predict", "--json", "--gpu", "h200", "--gpus", str(gpus), "--nodes", str(world // gpus)]
        command += ["--ranks", str(rank), "--once", "-q", "--steps", "all", "--", "torchrun", "--nnodes", str(world // gpus)]
        done = subprocess.run(
            [*command, "--nproc-per-node", str(gpus), PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
    if done.returncode not in (0, 1):
        return {"error": done.stderr[-1500:]}
    devices = json.loads(done.stdout)["devices"]
    device = next(device for device in devices if device["rank"] == rank and device["requests"])
    return {key.removeprefix("peak_"): device[key] for key in ("peak_allocated", "peak_reserved")}


def measure(options):
    path = pathlib.Path(options.json)
    results = json.loads(path.read_text()) if path.exists() else {}
    chosen = [one for one in COMBINATIONS if re.search(options.only, name_of(one)) and name_of(one) not in results]

    def one(index):
        combination = chosen[index]
        found = on_card(combination, 29500 + index) if options.command == "card" else predicted(combination, options.oomph)
        print(name_of(combination), json.dumps(found)[:400], flush=True)
        results[name_of(combination)] = found
        path.write_text(json.dumps(results, indent=1))

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, range(len(chosen))))


def table(options):
    card, predictions = (json.loads(pathlib.Path(path).read_text()) for path in (options.card, options.predicted))
    print("| others | ranks | rank | program | allocated: card, predicted | reserved: card, predicted |")
    print("|---|---|---|---|---|---|")
    equal = within = compared = 0
    for combination in COMBINATIONS:
        real, ours = card.get(name_of(combination), {}), predictions.get(name_of(combination), {})
        if "allocated" not in real or "allocated" not in ours:
            continue
        pairs = [(real[key], ours[key]) for key in ("allocated", "reserved")]
        compared += 1
        equal += all(left == right for left, right in pairs)
        within += all(abs(left - right) <= 0.01 * left for left, right in pairs)
        cells = [
            f"{left:,}, equal" if left == right else f"{left:,}, {right:,} ({(right - left) / left:+.2%})"
            for left, right in pairs
        ]
        answered, world, rank, arguments = combination
        for words, size in ((MEDIUM, "medium"), (LLAMA_8B, "8B"), (LLAMA_70B, "70B")):
            arguments = arguments.replace(words, size)
        print(f"| {answered} | {world} | {rank} | `{arguments}` | {' | '.join(cells)} |")
    print(f"\n{equal} of {compared} equal to the byte in both peaks, {within} within 1%.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, jobs in (("card", 4), ("predict", 1)):
        command = commands.add_parser(name)
        command.add_argument("--json", required=True, help="results; combinations that are in it are not run again")
        command.add_argument("--only", default="", help="pattern for the combinations to run")
        command.add_argument("--jobs", type=int, default=jobs)
        command.add_argument("--oomph", default="oomph")
    last = commands.add_parser("table")
    last.add_argument("card")
    last.add_argument("predicted")
    options = parser.parse_args()
    table(options) if options.command == "table" else measure(options)


main()
