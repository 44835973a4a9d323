"""Make fixtures/traffic again: recordings of the real allocators, their labels, and the settings strings.

    python oracle/record.py                     # everything, into fixtures/traffic
    python oracle/record.py --out /some/folder  # to compare with what is there

Build first (build.py), all sixteen releases."""

import argparse
import collections
import json
import lzma
import os
import sys

import build
import cases
import recording
import settings
from real import Aborted

CASES = 15  # for each release
CHANGING_CASES = 4  # for each release from 2.3 on
FOLDER = os.path.join(os.path.dirname(build.HERE), "fixtures", "traffic")


def recordings(out):
    labels = []
    for release in build.RELEASES:
        seed = number = 0
        while number < CASES:
            seed += 1
            case = cases.draw(release, seed)
            try:
                content, label, _ = recording.make(case)
            except Aborted as reason:
                print(f"{release} seed {seed} left out, PyTorch aborts: {reason}")
                continue
            name = f"{release}-{number:02}.pickle.xz"
            with open(os.path.join(out, name), "wb") as file:
                file.write(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
            labels.append({"file": name, **label})
            number += 1
    return labels


def changing_recordings(out):
    """Settings that change and pools of special kinds, with the sidecars of a recording; and switches of expandable segments,
    without."""
    labels = []
    os.makedirs(os.path.join(out, "changing"), exist_ok=True)
    for release in build.RELEASES:
        drawn = [(cases.draw_changing, seed) for seed in range(1, CHANGING_CASES + 1)] + [(cases.draw_switching, 1)]
        for draw, seed in drawn if build.minor(release) >= 3 else []:
            case = draw(release, seed)
            try:
                content, label, sidecar = recording.make(case)
            except Aborted as reason:
                print(f"{release} seed {seed} left out, PyTorch aborts: {reason}")
                continue
            name = os.path.join(out, "changing", f"{release}-{case.changes or case.special}-{seed}")
            with open(f"{name}.pickle.xz", "wb") as file:
                file.write(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
            if sidecar:
                with open(f"{name}.json", "w") as file:
                    json.dump(sidecar, file)
            labels.append({"file": f"{os.path.basename(name)}.pickle.xz", **label})
    return labels


def write_lines(path, rows):
    """JSON with one row a line, so that a difference shows as a line."""
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=FOLDER)
    out = parser.parse_args().out
    missing = [release for release in build.RELEASES if release not in build.built()]
    if missing:
        sys.exit(f"not built: {' '.join(missing)}; run `python oracle/build.py` first")
    os.makedirs(out, exist_ok=True)
    labels = recordings(out)
    write_lines(os.path.join(out, "cases.json"), labels)
    write_lines(os.path.join(out, "changing", "cases.json"), changing_recordings(out))
    rows = settings.table(build.RELEASES)
    write_lines(os.path.join(out, "settings.json"), rows)
    counts = collections.Counter(tag for label in labels for tag in label["tags"])
    print(f"{len(labels)} recordings: " + ", ".join(f"{count} {tag}" for tag, count in counts.most_common()))
    print(f"{len(rows)} settings, {sum(row['accepted'] for row in rows)} accepted")


if __name__ == "__main__":
    main()
