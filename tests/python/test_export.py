"""What `oomph export` writes, read back with other people's libraries and held against the pickle itself.

Run with `pytest tests/python`; `OOMPH` names the binary, otherwise the newest of target/{debug,release} is used.
"""

import functools
import itertools
import json
import lzma
import os
import pickle
import resource
import signal
import sqlite3
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.feather
import pyarrow.parquet
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = [
    "zoo/side_stream",
    "zoo/cuda_graph",
    "torch/torch-2.15.0",
    "torch/torch-2.15.0-expandable",
    "torch/torch-2.1.2-expandable",
]
STATES = ["active_allocated", "active_pending_free", "inactive"]
TABLES = ["events", "blocks", "segments", "frames", "stacks"]
FORMATS = ["parquet", "arrow", "sqlite", "json"]


def oomph():
    if "OOMPH" in os.environ:
        return Path(os.environ["OOMPH"]).resolve()
    built = [path for path in (ROOT / "target" / kind / "oomph" for kind in ("debug", "release")) if path.exists()]
    if not built:
        pytest.exit("build oomph first: cargo build", returncode=1)
    return max(built, key=lambda path: path.stat().st_mtime)


def export(source, to, output, **options):
    command = [oomph(), "export", source, "--to", to, "-o", output]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def read_sqlite(path):
    """SQLite has no unsigned integers and no flags; the documentation says how to get them back."""
    unsigned = {"addr", "stream"}

    def value(column, cell):
        if column == "expandable":
            return bool(cell)
        return cell + 2**64 if column in unsigned and cell is not None and cell < 0 else cell

    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    return {
        name: [
            {column: value(column, row[column]) for column in row.keys()}
            for row in connection.execute(f"SELECT * FROM {name} ORDER BY rowid")
        ]
        for name in TABLES
    }


def read(to, path):
    if to == "parquet":
        return {name: pyarrow.parquet.read_table(path / f"{name}.parquet").to_pylist() for name in TABLES}
    if to == "arrow":
        return {name: pyarrow.feather.read_table(path / f"{name}.arrow").to_pylist() for name in TABLES}
    if to == "sqlite":
        return read_sqlite(path)
    document = json.loads(path.read_text())
    assert document["version"] == 1
    return document["tables"]


def read_trace(path):
    trace = perfetto.Trace()
    trace.ParseFromString(path.read_bytes())
    assert trace.IsInitialized()
    # Fields that Perfetto does not know would still be there when written again.
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == path.stat().st_size
    return trace


@dataclass
class Export:
    folder: Path
    recorded: dict
    tables: dict
    trace: perfetto.Trace
    talk: dict

    def __getattr__(self, table):
        return self.tables["parquet"][table]


def make(source, folder):
    tables, talk = {}, {}
    for to in [*FORMATS, "perfetto"]:
        done = export(source, to, folder / to)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        talk[to] = done.stderr
        if to != "perfetto":
            tables[to] = read(to, folder / to)
    opened = lzma.open if source.suffix == ".xz" else open
    with opened(source, "rb") as file:
        recorded = pickle.load(file)
    return Export(folder, recorded, tables, read_trace(folder / "perfetto"), talk)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Exports a fixture to all formats, once."""
    return functools.cache(lambda name: make(ROOT / "fixtures" / f"{name}.pickle.xz", tmp_path_factory.mktemp("real")))


@pytest.fixture(params=FIXTURES)
def real(request, exported):
    return exported(request.param)


def a_block(addr, size, state="active_allocated"):
    return {"size": size, "requested_size": size, "address": addr, "state": state, "frames": []}


@pytest.fixture(scope="session")
def made_up(tmp_path_factory):
    """Two devices, addresses beyond 2**63, keys that no torch has yet, a label, and blocks from before the history
    of which two were given back before it, too."""
    frames = [{"name": "f", "filename": "/home/me/train.py", "line": 7, "column": 3}]
    base = 2**63 + 2**40
    older = base + (1 << 30)

    def event(action, addr, size, time, **more):
        return {"action": action, "addr": addr, "size": size, "stream": 2**64 - 1, "time_us": time,
                "frames": frames, "compile_context": "N/A", "user_metadata": "", **more}  # fmt: skip

    def trace(start):
        return [
            event("segment_alloc", base, 2 << 20, start),
            event("alloc", base, 512, start + 1, user_metadata='étape "1"\n'),
            event("alloc", base + 512, 1000, start + 2, colour="red"),
            event("free_requested", base, 512, start + 3),
            event("free_completed", base, 512, start + 3),
            event("dance", base, 0, start + 4),
            event("free_completed", older, 512, start + 5),
        ]

    def segment(device, addr, requested, blocks):
        sizes = {state: sum(block["size"] for block in blocks if block["state"] == state) for state in STATES}
        rest = (2 << 20) - sum(sizes.values())
        blocks = [*blocks, a_block(addr + (2 << 20) - rest, rest, "inactive")]
        return {"device": device, "address": addr, "total_size": 2 << 20, "stream": 2**64 - 1, "segment_type": "small",
                "segment_pool_id": (device, 1), "is_expandable": False, "requested_size": requested, "frames": [],
                "allocated_size": sizes["active_allocated"], "blocks": blocks,
                "active_size": sizes["active_allocated"] + sizes["active_pending_free"]}  # fmt: skip

    segments = []
    for device in (0, 2):
        kept = {**a_block(base + 512, 1024), "requested_size": 1000}
        segments.append(segment(device, base, 1000, [a_block(base, 512, "inactive"), kept]))
        waiting = a_block(older + 512, 512, "active_pending_free")
        held = a_block(older + 1024, 512)
        segments.append(segment(device, older, 1024, [a_block(older, 512, "inactive"), waiting, held]))
    recorded = {"segments": segments, "device_traces": [trace(1_000_000), [], trace(2_000_000)],
                "external_annotations": [
                    {"stage": stage, "name": name, "device": 2, "time_us": 2_000_000 + place}
                    for place, (name, stage) in enumerate([("lost", "END"), ("a", "START"), ("b", "START"),
                                                           ("a", "END"), ("b", "END"), ("open", "START")])]}  # fmt: skip
    folder = tmp_path_factory.mktemp("made_up")
    (folder / "made_up.pickle").write_bytes(pickle.dumps(recorded))
    return make(folder / "made_up.pickle", folder)


@pytest.fixture(params=[*FIXTURES, "made_up"])
def either(request, exported, made_up):
    return made_up if request.param == "made_up" else exported(request.param)


def recorded_events(recorded):
    return [(device, place, event)
            for device, trace in enumerate(recorded["device_traces"])
            for place, event in enumerate(trace)]  # fmt: skip


def test_all_formats_hold_the_same_rows(either):
    for name, to in itertools.product(TABLES, FORMATS):
        assert either.tables[to][name] == either.tables["parquet"][name], (name, to)


def test_events_are_those_of_the_pickle(either):
    recorded = recorded_events(either.recorded)
    assert len(either.events) == len(recorded)
    frames = {row["frame_id"]: row for row in either.frames}
    stacks = {}
    for row in either.stacks:
        assert row["depth"] == len(stacks.setdefault(row["stack_id"], []))
        stacks[row["stack_id"]].append(frames[row["frame_id"]])
    for row, (device, place, event) in zip(either.events, recorded):
        assert (row["device"], row["event"]) == (device, place)
        for key in ("action", "size", "stream", "time_us"):
            assert row[key] == event.get(key), key
        assert row["addr"] == (None if event["action"] == "oom" else event["addr"])
        assert row["device_free"] == event.get("device_free")
        assert row["compile_context"] == event.get("compile_context")
        assert row["user_metadata"] == (event.get("user_metadata") or None)
        pool = event.get("pool_id")
        assert row["pool"] == (pool and f"{pool[0]},{pool[1]}")
        stack = [(frame["function"], frame["file"], frame["line"]) for frame in stacks.get(row["stack_id"], [])]
        assert stack == [(frame["name"], frame["filename"], frame["line"]) for frame in event.get("frames", [])]


def test_the_last_event_has_the_totals_of_the_segments(either):
    for device in {row["device"] for row in either.segments}:
        last = [row for row in either.events if row["device"] == device][-1]
        segments = [segment for segment in either.recorded["segments"] if segment["device"] == device]
        for column, key in [("allocated", "allocated_size"), ("active", "active_size"), ("reserved", "total_size")]:
            assert last[column] == sum(segment[key] for segment in segments), column


def test_blocks_that_are_left_are_those_of_the_segments(either):
    expected = Counter(
        (segment["device"], block["address"], block["size"], block["requested_size"], block["state"])
        for segment in either.recorded["segments"]
        for block in segment["blocks"]
        if block["state"] != "inactive"
    )
    left = [row for row in either.blocks if row["state_at_end"] != "inactive"]
    assert Counter(
        (row["device"], row["addr"], row["size"], row["requested"], row["state_at_end"]) for row in left
    ) == expected  # fmt: skip
    for row in left:
        (segment,) = (
            segment for segment in either.segments
            if segment["device"] == row["device"] and 0 <= row["addr"] - segment["addr"] < segment["size"]
        )  # fmt: skip
        assert (row["pool"], row["stream"]) == (segment["pool"], segment["stream"])
    allocated = sum(row["size"] for row in left if row["state_at_end"] == "active_allocated")
    assert allocated == sum(segment["allocated_size"] for segment in either.recorded["segments"])


def test_segments_are_those_of_the_pickle(either):
    recorded = sorted(either.recorded["segments"], key=lambda segment: (segment["device"], segment["address"]))
    assert [row["segment_id"] for row in either.segments] == list(range(len(recorded)))
    for row, segment in zip(either.segments, recorded):
        assert (row["device"], row["addr"], row["size"]) == (
            segment["device"], segment["address"], segment["total_size"])  # fmt: skip
        assert (row["allocated"], row["active"], row["requested"]) == (
            segment["allocated_size"], segment["active_size"], segment["requested_size"])  # fmt: skip
        assert (row["stream"], row["kind"]) == (segment["stream"], segment["segment_type"])
        assert row["pool"] == "{},{}".format(*segment["segment_pool_id"])
        assert row["expandable"] == segment["is_expandable"]


def test_events_and_blocks_point_at_each_other(either):
    blocks = {row["block_id"]: row for row in either.blocks}
    assert list(blocks) == list(range(len(either.blocks)))
    column = {"alloc": "alloc_event", "free_requested": "free_requested_event",
              "free_completed": "free_completed_event"}  # fmt: skip
    seen = dict.fromkeys(column.values(), 0)
    for event in either.events:
        if event["action"] not in column:
            assert event["block_id"] is None
            continue
        block = blocks[event["block_id"]]
        assert (block["addr"], block["device"]) == (event["addr"], event["device"])
        assert (block["requested"], block["stream"]) == (event["size"], event["stream"])
        assert block[column[event["action"]]] == event["event"]
        seen[column[event["action"]]] += 1
    for name, count in seen.items():
        assert count == sum(row[name] is not None for row in either.blocks), name


def test_nulls_stand_where_the_documentation_says(either):
    may_be_null = {
        "events": {"addr", "device_free", "time_us", "block_id", "compile_context", "user_metadata", "pool",
                   "forward_frames", "extra"},
        "blocks": {"stream", "pool", "alloc_event", "free_requested_event", "free_completed_event", "site_file",
                   "site_line", "site_function", "phase", "module", "label", "tensor"},
        "segments": set(),
        "frames": {"extra"},
        "stacks": set(),
    }  # fmt: skip
    for name, columns in may_be_null.items():
        for row in either.tables["parquet"][name]:
            assert {column for column, value in row.items() if value is None} <= columns
    for row in either.events:
        assert (row["device_free"] is not None) == (row["addr"] is None) == (row["action"] == "oom")
    for row in either.blocks:
        if row["free_completed_event"] is not None:
            assert row["state_at_end"] == "inactive"
        elif row["free_requested_event"] is not None:
            assert row["state_at_end"] == "active_pending_free"
        else:
            # Without an event, only what is from before the history can have been given back.
            assert row["state_at_end"] == "active_allocated" or row["alloc_event"] is None
        assert (row["site_file"] is None) == (row["site_line"] is None) == (row["site_function"] is None)


def test_blocks_name_the_line_of_the_user(exported):
    blocks = exported("zoo/side_stream").blocks
    sites = Counter(row["site_file"] for row in blocks)
    assert [Path(file).name for file, _ in sites.most_common(1)] == ["side_stream.py"]


def documented_columns():
    """The tables of docs/reference/tables.md: name, type and whether nulls are allowed, for each column."""
    tables, name = {}, None
    for line in (ROOT / "docs/reference/tables.md").read_text().splitlines():
        if line.startswith("## "):
            name = line[3:]
        elif name in TABLES and line.startswith("| `"):
            column, kind, null = (cell.strip() for cell in line.strip("|").split("|")[:3])
            tables.setdefault(name, []).append((column.strip("`"), kind, null != ""))
    return tables


def test_columns_are_those_of_the_documentation(exported):
    folder = exported("zoo/side_stream").folder
    words = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    types = {"uint32": pyarrow.uint32(), "uint64": pyarrow.uint64(), "int64": pyarrow.int64(),
             "boolean": pyarrow.bool_(), "text": pyarrow.string(), "text*": words}  # fmt: skip
    documented = documented_columns()
    assert list(documented) == TABLES
    for name, columns in documented.items():
        expected = pyarrow.schema([pyarrow.field(column, types[kind], nullable) for column, kind, nullable in columns])
        assert pyarrow.parquet.read_schema(folder / "parquet" / f"{name}.parquet").remove_metadata() == expected
        assert pyarrow.feather.read_table(folder / "arrow" / f"{name}.arrow").schema == expected
        described = sqlite3.connect(folder / "sqlite").execute(f"PRAGMA table_info({name})").fetchall()
        assert [(row[1], row[2]) for row in described] == [
            (column, "TEXT" if kind.startswith("text") else "INTEGER") for column, kind, _ in columns
        ]
        for (column, _, nullable), row in zip(columns, described):
            assert bool(row[3] or row[5]) != nullable, column


def test_the_query_of_the_documentation_finds_what_was_live_at_the_peak(either):
    query = (ROOT / "docs/reference/tables.md").read_text().split("```sql\n")[1].split("```")[0]
    connection = sqlite3.connect(either.folder / "sqlite")
    rows = connection.execute(query.replace("LIMIT 10", "")).fetchall()
    assert sum(row[-1] for row in rows) == connection.execute("SELECT max(allocated) FROM events").fetchone()[0]
    assert len(connection.execute(query).fetchall()) == min(len(rows), 10)


def test_sqlite_has_its_indices_and_wraps_large_addresses(made_up):
    connection = sqlite3.connect(made_up.folder / "sqlite")
    assert connection.execute("SELECT min(addr), max(stream) FROM events").fetchone() == (2**40 - 2**63, -1)
    for query in ("SELECT * FROM events WHERE event = 3", "SELECT * FROM blocks WHERE alloc_event = 3",
                  "SELECT * FROM blocks WHERE block_id = 1", "SELECT * FROM stacks WHERE stack_id = 1"):  # fmt: skip
        plan = connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchone()
        assert plan[-1].startswith("SEARCH"), plan[-1]


def test_what_is_new_or_odd_is_kept(made_up):
    first = [row for row in made_up.events if row["device"] == 0]
    assert first[1]["user_metadata"] == 'étape "1"\n'
    assert json.loads(first[2]["extra"]) == {"colour": "red"}
    assert first[5]["action"] == "dance"
    assert [json.loads(row["extra"]) for row in made_up.frames] == [{"column": 3}]
    assert [row["block_id"] for row in made_up.blocks if row["device"] == 2] == [5, 6, 7, 8, 9]


def test_blocks_from_before_the_history_have_no_events_from_there(made_up):
    older = [
        (row["free_requested_event"], row["free_completed_event"], row["state_at_end"])
        for row in sorted(made_up.blocks, key=lambda row: row["addr"])
        if row["device"] == 0 and row["alloc_event"] is None
    ]
    assert older == [(None, 6, "inactive"), (None, None, "active_pending_free"), (None, None, "active_allocated")]


def tracks_of(trace):
    descriptors = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    assert len({track.uuid for track in descriptors}) == len(descriptors)
    groups = {track.uuid: track.name for track in descriptors if not track.HasField("parent_uuid")}
    return {track.uuid: (groups[track.parent_uuid], track) for track in descriptors if track.HasField("parent_uuid")}


def events_of(trace, name):
    """The events of the tracks of this name, by group."""
    tracks = tracks_of(trace)
    found = {}
    for packet in trace.packet:
        if packet.HasField("track_event") and tracks[packet.track_event.track_uuid][1].name == name:
            found.setdefault(tracks[packet.track_event.track_uuid][0], []).append(packet)
    return found


def test_the_trace_is_a_sequence_that_perfetto_accepts(either):
    packets = either.trace.packet
    assert packets[0].sequence_flags == perfetto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert {packet.trusted_packet_sequence_id for packet in packets} == {1}
    described = set()
    for packet in packets:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            described.add(track.uuid)
            if track.HasField("counter"):
                assert track.counter.unit == perfetto.CounterDescriptor.UNIT_SIZE_BYTES
        else:
            assert packet.HasField("timestamp") and packet.track_event.track_uuid in described


def test_the_trace_counts_what_the_events_count(either):
    no_times = all(row["time_us"] is None for row in either.events)
    assert ("one microsecond of the trace stands for one event" in either.talk["perfetto"]) == no_times
    for name in ("allocated", "reserved", "active"):
        for group, packets in events_of(either.trace, name).items():
            rows = [row for row in either.events if f"GPU {row['device']} memory" == group]
            times = [(row["event"] if no_times else row["time_us"]) * 1000 for row in rows]
            values = [row[name] for row in rows]
            changes = [place for place in range(len(rows)) if place == 0 or values[place] != values[place - 1]]
            assert all(packet.track_event.type == perfetto.TrackEvent.TYPE_COUNTER for packet in packets)
            assert [(packet.timestamp, packet.track_event.counter_value) for packet in packets] == [
                (times[place], values[place]) for place in changes
            ]
    requested = {group: packets[-1].track_event.counter_value
                 for group, packets in events_of(either.trace, "requested").items()}  # fmt: skip
    assert sum(requested.values()) == sum(segment["requested_size"] for segment in either.recorded["segments"])


def test_the_trace_has_an_instant_for_each_oom(either):
    instants = [packet for packets in events_of(either.trace, "out of memory").values() for packet in packets]
    ooms = [row for row in either.events if row["action"] == "oom"]
    assert [packet.track_event.type for packet in instants] == [perfetto.TrackEvent.TYPE_INSTANT] * len(ooms)
    for packet, row in zip(instants, ooms):
        assert f"{row['size'] / 2**20:.0f} MiB" in packet.track_event.name


def slices_of(trace):
    """Every slice as (name, start, end), with a stack per track as Perfetto keeps one."""
    stacks, slices = {}, []
    for packets in events_of(trace, "annotations").values():
        for packet in packets:
            event, stack = packet.track_event, stacks.setdefault(packet.track_event.track_uuid, [])
            if event.type == perfetto.TrackEvent.TYPE_SLICE_BEGIN:
                stack.append((event.name, packet.timestamp))
            else:
                assert event.type == perfetto.TrackEvent.TYPE_SLICE_END
                slices.append((*stack.pop(), packet.timestamp))
    assert not any(stacks.values())
    return sorted(slices)


def test_annotations_become_slices(real):
    starts = {}
    expected = []
    for end in real.recorded.get("external_annotations", []):
        if end["stage"] == "START":
            starts[end["name"]] = end["time_us"]
        else:
            expected.append((end["name"], starts.pop(end["name"]) * 1000, end["time_us"] * 1000))
    assert slices_of(real.trace) == sorted(expected)


def test_annotations_that_cross_keep_their_own_ends_and_halves_are_left_out(made_up):
    ns = lambda place: (2_000_000 + place) * 1000
    assert slices_of(made_up.trace) == [("a", ns(1), ns(3)), ("b", ns(2), ns(4))]


@pytest.mark.parametrize("to", [*FORMATS, "perfetto"])
def test_a_full_disk_leaves_nothing_behind(to, tmp_path):
    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))

    source = ROOT / "fixtures/zoo/side_stream.pickle.xz"
    done = export(source, to, tmp_path / "out", preexec_fn=small_files_only)
    assert done.returncode == 2
    assert "could not be written" in done.stderr and "hint:" in done.stderr, done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("to", [*FORMATS, "perfetto"])
def test_an_older_export_is_replaced(to, tmp_path):
    small, large = ROOT / "fixtures/torch/torch-2.15.0.pickle.xz", ROOT / "fixtures/zoo/side_stream.pickle.xz"
    for source, folder in [(large, "a"), (small, "a"), (small, "b")]:
        (tmp_path / folder).mkdir(exist_ok=True)
        assert export(source, to, tmp_path / folder / "out").returncode == 0
    again, fresh = (
        {path.relative_to(tmp_path / folder): path.read_bytes() for path in (tmp_path / folder).rglob("*") if path.is_file()}
        for folder in ("a", "b")
    )
    assert again == fresh
