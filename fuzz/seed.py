"""Fills corpus/ from the fixtures: real snapshots, small, in every form. Standard library only."""

import gzip
import io
import json
import lzma
import pickle
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
# libFuzzer mutates small inputs best: a snapshot is cut down to its first events and segments.
EVENTS, SEGMENTS = 12, 2


def cut(snapshot):
    """A snapshot with few events and segments, of the same shape."""
    if isinstance(snapshot, list):
        return snapshot[:SEGMENTS]
    small = dict(snapshot)
    small["segments"] = snapshot["segments"][:SEGMENTS]
    small["device_traces"] = [trace[:EVENTS] for trace in snapshot["device_traces"]][:2]
    for key in ("external_annotations", "host_segments", "host_traces"):
        if key in small:
            small[key] = small[key][:4]
    return small


def seeds():
    """Name and content of every seed."""
    for path in sorted(FIXTURES.glob("torch/*.pickle.xz")):
        with lzma.open(path) as file:
            snapshot = cut(pickle.load(file))
        name = path.name.split(".pickle")[0]
        yield f"{name}.json", json.dumps(snapshot).encode()
        for protocol in range(6):
            yield f"{name}-{protocol}", pickle.dumps(snapshot, protocol=protocol)
        yield f"{name}-segments", pickle.dumps(snapshot["segments"], protocol=2)
    for path in sorted(FIXTURES.glob("bad/*")):
        if path.stat().st_size <= 64 << 10:
            yield f"bad-{path.name}", path.read_bytes()
    for path in sorted(FIXTURES.glob("formats/*.pt")):
        yield path.name, path.read_bytes()


def zipped(data: bytes, method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("archive/data.pkl", data)
    return file.getvalue()


def main() -> None:
    targets = {name: HERE / "corpus" / name for name in ("raw", "pickle", "json", "containers", "message", "source")}
    for folder in targets.values():
        folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, data in seeds():
        count += 1
        (targets["raw"] / name).write_bytes(data)
        if data[:1] == b"\x80":
            (targets["pickle"] / name).write_bytes(data[2:])
        elif data[:1] in b"{[":
            (targets["json"] / name).write_bytes(data)
        if count % 7 == 0:
            for container in range(6):
                (targets["containers"] / f"{name}-in-{container}").write_bytes(bytes([container, 0]) + data)
            (targets["raw"] / f"{name}.gz").write_bytes(gzip.compress(data))
            (targets["raw"] / f"{name}.xz").write_bytes(lzma.compress(data))
            (targets["raw"] / f"{name}.zip").write_bytes(zipped(data, zipfile.ZIP_DEFLATED))
            (targets["raw"] / f"{name}.stored").write_bytes(zipped(data, zipfile.ZIP_STORED))
    for path in sorted(FIXTURES.glob("messages/*.txt")):
        count += 1
        (targets["message"] / path.stem).write_bytes(path.read_bytes())
    for path in sorted(FIXTURES.glob("**/programs/*.py")):
        count += 1
        (targets["source"] / path.stem).write_bytes(path.read_bytes())
    if count == 0:
        sys.exit("no fixtures found: nothing to start from")
    print(f"{count} seeds")


if __name__ == "__main__":
    main()
