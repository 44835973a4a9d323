"""Compare `oomph simulate --verify` with the real allocators on fresh random traffic.

    python oracle/nightly.py                                        # 200 cases for each release that is built
    python oracle/nightly.py --releases 2.3.1 2.13.0 --cases 50 --seed 7000

Each case is recorded with the real allocator and given to oomph twice: with the size of the device and the memory
limit, which a snapshot does not hold, and without, so that oomph has to find out.  A recording that was not explained
is kept, and the command that shows the difference is printed.  Exit status 0 only if every whole recording was
explained with those two given; what had to be found out, histories that begin late, and switches of expandable segments
that are not noted are only counted: they may not say enough.  Of changing cases, one in fifty may differ."""

import argparse
import collections
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time

import build
import cases
import recording
from real import Aborted

OOMPH = os.path.join(os.path.dirname(build.HERE), "target", "release", "oomph")
# Settings that stay; settings that change, or pools of special kinds; expandable segments that are switched on and off.
DRAWS = {"plain": "draw", "changing": "draw_changing", "switching": "draw_switching"}
# Of changing cases.  A recording does not say whether a block of a pool with use_on_oom was requested in the pool, or with
# which page size a segment was created in which nothing could be mapped; 3 of 772 differed.
TOLERATED_SHARE = 0.02
VERDICTS = {0: "identical", 1: "different"}


def simulate(oomph, path, case, is_told):
    """The command, its verdict in a word, and what it said."""
    command = [oomph, "simulate", path, "--verify", "--json", "--torch", f"2.{build.minor(case.release)}"]
    if build.minor(case.release) < 3 and case.conf:  # before 2.3 a snapshot does not hold its settings
        command += ["--recorded-conf", case.conf]
    if is_told:
        command += ["--gpu", str(case.total)]
        if case.limit is not None:
            command += ["--limit", str(case.limit)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return command, "failed", "no answer within 300 s"
    verdict = VERDICTS.get(done.returncode, "failed")
    try:
        verify = json.loads(done.stdout)["verify"]
        if verdict == "identical" and verify["identical"] != verify["events"]:
            verdict = "different"  # the status and the numbers must agree
        said = verify["first_difference"]
    except (ValueError, KeyError, TypeError):
        verdict, said = "failed", done.stderr.strip() or "no JSON with `verify`"
    return command, verdict, said


def check(case, options, counts):
    """True if oomph explains what it can be expected to of the recording of this case."""
    name = f"{case.release}-seed-{case.seed}.pickle"
    try:
        content, label, sidecar = recording.make(case)
    except Aborted as reason:
        counts["PyTorch aborts"] += 1
        print(f"{name}: not recorded, PyTorch aborts: {reason}", flush=True)
        return True
    path = os.path.join(options.keep, name)
    with open(path, "wb") as file:
        file.write(content)
    notes = os.path.join(options.keep, name.replace(".pickle", ".json"))
    if sidecar:
        with open(notes, "w") as file:
            json.dump(sidecar, file)
    explained, expected = True, True
    for is_told in (True, False):
        command, verdict, said = simulate(options.oomph, path, case, is_told)
        counts[verdict if is_told else f"{verdict} without being told"] += 1
        if verdict != "identical":
            explained = False
            if verdict == "failed" or (is_told and not case.cut and case.changes != "expandable"):
                expected = False
            print(f"{name}: {verdict.upper()} [{' '.join(label['tags'])}] {said}\n  {shlex.join(command)}", flush=True)
    if explained:
        os.remove(path)
        if sidecar:
            os.remove(notes)
    return expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", nargs="+", metavar="RELEASE", default=build.built())
    parser.add_argument("--cases", type=int, default=200, help="for each release (default 200)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first case (default: the time)")
    parser.add_argument("--oomph", default=OOMPH, help="the program (default: target/release/oomph)")
    parser.add_argument("--keep", help="folder for recordings that differ (default: a new temporary one)")
    parser.add_argument("--kind", choices=DRAWS, default="plain", help="of cases; all but `plain` are for 2.3 and later")
    options = parser.parse_args()
    if options.kind != "plain":
        options.releases = [release for release in options.releases if build.minor(release) >= 3]
    missing = [release for release in options.releases if release not in build.built()]
    if missing or not options.releases:
        sys.exit(f"not built: {' '.join(missing) or 'any release'}; run `python oracle/build.py` first")
    if not os.access(options.oomph, os.X_OK):
        sys.exit(f"no program at {options.oomph}; `cargo build --release` makes it")
    options.keep = options.keep or tempfile.mkdtemp(prefix="oomph-nightly-")
    os.makedirs(options.keep, exist_ok=True)
    counts = collections.Counter()
    wrong = 0
    for release in options.releases:
        seeds = range(options.seed, options.seed + options.cases)
        draw = getattr(cases, DRAWS[options.kind])
        bad = sum(not check(draw(release, seed), options, counts) for seed in seeds)
        print(f"{release}: {options.cases} cases from seed {options.seed}, {bad} unexpectedly different", flush=True)
        wrong += bad
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    if os.listdir(options.keep):
        print(f"kept in {options.keep}")
    else:
        os.rmdir(options.keep)
    tolerated = TOLERATED_SHARE * options.cases * len(options.releases) if options.kind == "changing" else 0
    return 1 if wrong > tolerated else 0


if __name__ == "__main__":
    sys.exit(main())
