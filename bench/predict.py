"""What `oomph predict` says beside what a real H200 did: peaks and requests of every recorded program.

    python bench/predict.py [--python INTERPRETER] [--only PART] [NAME ...]

The interpreter needs torch 2.11.0, torchvision 0.26.0 and transformers 5.17.0, as on the H200. The real figures are the
recordings in `fixtures/zoo` and `fixtures/field`, and `fixtures/predict/real.json`, which `--learn FOLDER` makes from
recordings. The table goes to standard output; redirect it into `bench/results/`.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import lzma
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
OOMPH = os.environ.get("OOMPH", ROOT / "target/release/oomph")
FIXTURES = ROOT / "fixtures"
REAL = FIXTURES / "predict/real.json"


def requests(snapshot):
    """What the program asked for, in order: every allocation and every free, with its size."""
    return [
        ("+" if event["action"] == "alloc" else "-", event["size"])
        for trace in snapshot["device_traces"]
        for event in trace
        if event["action"] in ("alloc", "free_requested")
    ]


def figures(snapshot, truth):
    asked = requests(snapshot)
    text = "".join(f"{sign}{size}" for sign, size in asked)
    stats = truth["final_stats"]
    # A program may reset the peak counters: then the rows have the higher one.
    highest = lambda key: max([row[key] for row in truth["rows"]] + [stats[f"{key[5:]}_bytes.all.peak"]])
    return {
        "requests": len(asked),
        "fingerprint": hashlib.sha256(text.encode()).hexdigest(),
        "peak_allocated": highest("peak_allocated"),
        "peak_reserved": highest("peak_reserved"),
    }


def load(path):
    opened = lzma.open(path) if path.suffix == ".xz" else open(path, "rb")
    with opened as file:
        return pickle.load(file)


def learn(folder):
    real = {}
    for path in sorted(pathlib.Path(folder).glob("*.pickle.xz")):
        name = path.name.removesuffix(".pickle.xz")
        truth = json.loads(path.with_name(f"{name}.truth.json").read_text())
        real[name] = figures(load(path), truth)
    REAL.write_text(json.dumps(real, indent=1) + "\n")
    print(f"{len(real)} programs", file=sys.stderr)


def programs():
    """Every program with its arguments and its real figures: name → (part, arguments, figures)."""
    found = {}
    for part, folder in (("zoo", FIXTURES / "programs"), ("field", FIXTURES / "field/programs")):
        for path in sorted((FIXTURES / part).glob("*.pickle.xz")):
            name = path.name.removesuffix(".pickle.xz")
            truth = json.loads(path.with_name(f"{name}.truth.json").read_text())
            if (folder / f"{name}.py").exists():
                found[name] = (part, [folder / f"{name}.py"], lambda path=path, truth=truth: figures(load(path), truth))
    for name, known in json.loads(REAL.read_text()).items() if REAL.exists() else []:
        folder = FIXTURES / "predict/programs"
        if name.startswith("tech_"):
            _, model, technique = name.split("_", 2)
            found[name] = ("techniques", [folder / "techniques.py", model, technique], lambda known=known: known)
        else:
            found[name] = ("others", [folder / f"{name}.py"], lambda known=known: known)
    return found


def predict(name, arguments, real, python, keep):
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        output = pathlib.Path(keep or scratch) / name
        output.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "ZOO_OUT": str(output), "PYTHONPATH": str(FIXTURES / "programs")}
        command = [OOMPH, "predict", "--gpu", "h200", "--steps", "all", "--once", "--quiet", "--json", "--python", python]
        command += ["-o", str(output), "--", *map(str, arguments)]
        process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
        seconds = time.monotonic() - began
        try:
            answer = json.loads(process.stdout)
            recorded = load(output / "rank0.pickle")
        except (ValueError, OSError):
            return name, None, real(), process.stderr.strip()[-300:], seconds
        asked = requests(recorded)
        text = "".join(f"{sign}{size}" for sign, size in asked)
        answer["fingerprint"] = hashlib.sha256(text.encode()).hexdigest()
        return name, answer, real(), "", seconds


def off(predicted, real):
    by = 100 * (predicted / real - 1)
    return "0" if predicted == real else f"{by:+.3f}%"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--learn")
    parser.add_argument("--only")
    parser.add_argument("--keep")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.learn:
        return learn(args.learn)
    chosen = {
        name: entry
        for name, entry in programs().items()
        if (not args.names or name in args.names) and args.only in (None, entry[0])
    }
    rows = collections.defaultdict(list)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [
            (part, pool.submit(predict, name, arguments, real, args.python, args.keep))
            for name, (part, arguments, real) in chosen.items()
        ]
        for place, (part, job) in enumerate(jobs):
            row = job.result()
            rows[part].append(row)
            print(f"{place + 1} of {len(jobs)}: {row[0]} {row[4]:.0f} s {row[3]}", file=sys.stderr, flush=True)
    for part, results in rows.items():
        print(f"\n## {part}\n")
        print("| program | requests | identical | peak allocated | difference | peak reserved | difference | said |")
        print("|---|---|---|---|---|---|---|---|")
        done = [(name, answer, real) for name, answer, real, _, _ in results if answer]
        # PyTorch fails when checkpointing with dropout is recorded: for such programs there are peaks alone.
        known = [(name, answer, real) for name, answer, real in done if real["fingerprint"]]
        same = {name for name, answer, real in known if answer["fingerprint"] == real["fingerprint"]}
        for name, answer, real in done:
            if real["fingerprint"]:
                cells = [name, f"{real['requests']:,}", "yes" if name in same else "no"]
            else:
                cells = [name, "", "not recorded"]
            for peak in ("peak_allocated", "peak_reserved"):
                cells += [f"{real[peak]:,}", off(answer[peak], real[peak])]
            print("| " + " | ".join([*cells, answer["confidence"]]) + " |")
        for name, answer, _, why, _ in results:
            if not answer:
                print(f"| {name} | | failed | | | | | {why.splitlines()[-1] if why else ''} |")
        close = lambda peak, percent: sum(abs(answer[peak] / real[peak] - 1) <= percent / 100 for _, answer, real in done)
        print(
            f"\n{len(done)} of {len(results)} ran; requests identical in {len(same)} of {len(known)}; peak allocated equal in "
            f"{close('peak_allocated', 0)}, within 1% in {close('peak_allocated', 1)}; peak reserved equal in "
            f"{close('peak_reserved', 0)}, within 3% in {close('peak_reserved', 3)}."
        )


if __name__ == "__main__":
    main()
