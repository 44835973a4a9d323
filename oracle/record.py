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
FOLDER = os.path.join(os.path.dirname(build.HERE), "fixtures", "traffic")


def recordings(out):
    labels = []
    for release in build.RELEASES:
        seed = number = 0
        while number < CASES:
            seed += 1
            case = cases.draw(release, seed)
            try:
                content, label = recording.make(case)
            except Aborted as reason:
                print(f"{release} seed {seed} left out, PyTorch aborts: {reason}")
                continue
            name = f"{release}-{number:02}.pickle.xz"
            with open(os.path.join(out, name), "wb") as file:
                file.write(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
            labels.append({"file": name, **label})
            number += 1
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
    rows = settings.table(build.RELEASES)
    write_lines(os.path.join(out, "settings.json"), rows)
    counts = collections.Counter(tag for label in labels for tag in label["tags"])
    print(f"{len(labels)} recordings: " + ", ".join(f"{count} {tag}" for tag, count in counts.most_common()))
    print(f"{len(rows)} settings, {sum(row['accepted'] for row in rows)} accepted")


if __name__ == "__main__":
    main()
