"""`oomph.load` and what comes from it, held against the command and read by other people's libraries."""

import contextlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.feather
import pytest

import oomph
from conftest import FIXTURES, OOMPH, ROOT

SNAPSHOTS = [
    "zoo/leak_infer_outputs.pickle.xz",
    "zoo/side_stream.pickle.xz",
    "torch/torch-2.1.2-expandable.pickle.xz",
    "torch/torch-2.15.0.pickle.xz",
    "bad/blocks-overlap.json",
]
LEAK = FIXTURES / SNAPSHOTS[0]
OTHER = FIXTURES / SNAPSHOTS[1]
TABLES = ["events", "blocks", "segments", "frames", "stacks"]


def command(*arguments: object) -> str:
    """What the command prints."""
    done = subprocess.run([OOMPH, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def leak() -> oomph.Snapshot:
    return oomph.load(LEAK)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_report_is_that_of_the_command(name: str) -> None:
    path = FIXTURES / name
    report = oomph.load(path).report()
    assert report.json == json.loads(command("report", "--json", path))
    assert str(report) + "\n" == command("report", path)


@pytest.mark.parametrize(
    "options",
    [{"at": "end"}, {"at": 100, "top": 2}, {"by": "category"}, {"by": "stack", "top": 1}, {"by": "size"}, {"by": "module"}],
    ids=str,
)
def test_options_are_those_of_the_command(leak: oomph.Snapshot, options: dict[str, object]) -> None:
    flags = [f"--{name}={value}" for name, value in options.items()]
    report = leak.report(**options)  # type: ignore[arg-type]
    assert report.json == json.loads(command("report", "--json", *flags, LEAK))
    assert str(report) + "\n" == command("report", *flags, LEAK)


def test_the_peak_and_the_findings_have_names(leak: oomph.Snapshot) -> None:
    device = json.loads(command("report", "--json", "--at=peak", LEAK))["inputs"][0]["devices"][0]
    assert (leak.peak.allocated, leak.peak.event) == (device["allocated"]["peak"], device["allocated"]["peak_event"])
    assert leak.peak.reserved == device["reserved"]["peak"]
    assert sum(leak.peak.categories.values()) == leak.peak.allocated
    assert [group.bytes for group in leak.peak.groups] == [group["bytes"] for group in device["live"]["groups"]]
    assert [finding.json for finding in leak.findings] == device["findings"]
    first = leak.findings[0]
    assert (first.kind, first.severity) == ("leak", "high")
    assert first.bytes_per_step == device["findings"][0]["bytes_per_step"]
    assert first.site is not None and first.site.line == 9 and first.site.function == "predict"


def test_fields_without_a_name_are_there(leak: oomph.Snapshot) -> None:
    assert leak.devices[0].json["counters"]["peak"]["allocated"] == leak.peak.allocated
    assert leak.findings[0].json["severity_reason"]


def test_nothing_recorded_has_a_peak_of_zero(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"segments": [], "device_traces": []}')
    empty = oomph.load(path)
    assert (empty.peak.allocated, empty.findings, empty.devices) == (0, (), ())
    assert "nothing was allocated" in str(empty.report())


def test_a_what_if_is_that_of_the_command(leak: oomph.Snapshot) -> None:
    simulation = leak.simulate("expandable_segments:True", gpu="24GiB")
    options = ["--conf=expandable_segments:True", "--gpu=24GiB"]
    assert simulation.json == json.loads(command("simulate", "--json", *options, LEAK))
    assert str(simulation) + "\n" == command("simulate", *options, LEAK)
    assert simulation.fits and simulation.peak_reserved == simulation.json["peak_reserved"] and not simulation.oom
    small = leak.simulate(gpu=2 << 30)
    assert not small.fits and small.oom is not None and small.oom["allocated"] < leak.peak.allocated
    assert small.smallest_gpu is not None and small.smallest_gpu > 2 << 30
    assert leak.simulate("").settings == ""


def test_a_search_and_a_comparison_are_those_of_the_command(leak: oomph.Snapshot) -> None:
    search = leak.search()
    assert search.json == json.loads(command("simulate", "--json", "--search", LEAK))
    assert search.best is not None and search.trials[0]["settings"] == search.best["settings"]
    assert leak.verify().json == json.loads(command("simulate", "--json", "--verify", LEAK))
    assert leak.verify().is_identical
    as_older = leak.simulate("max_split_size_mb:64", torch="2.3")
    assert as_older.json == json.loads(command("simulate", "--json", "--conf=max_split_size_mb:64", "--torch=2.3", LEAK))


def test_a_replayed_run_is_a_snapshot(leak: oomph.Snapshot, tmp_path: Path) -> None:
    output = tmp_path / "replayed.pickle"
    simulation = leak.simulate("expandable_segments:True", output=output)
    written = output.stat().st_mtime_ns
    assert oomph.load(output).devices[0].reserved.peak == simulation.peak_reserved
    assert str(simulation) and output.stat().st_mtime_ns == written, "showing it must not write it again"


def test_notes_are_warnings(leak: oomph.Snapshot) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        leak.simulate("pinned_num_register_threads:8")
    done = subprocess.run([OOMPH, "simulate", "--conf=pinned_num_register_threads:8", LEAK], capture_output=True, text=True)
    notes = [line.removeprefix("note: ") for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert notes and [str(warning.message) for warning in caught] == notes
    assert caught[0].filename == __file__


def test_a_difference_is_that_of_the_command(leak: oomph.Snapshot) -> None:
    difference = leak.diff(oomph.load(OTHER), top=3)
    assert difference.json == json.loads(command("diff", "--json", "--top=3", LEAK, OTHER))
    assert str(difference) + "\n" == command("diff", "--top=3", LEAK, OTHER)
    assert difference.pairs[0]["allocated"]["peak"]["before"] == leak.peak.allocated


def test_a_check_is_that_of_the_command(leak: oomph.Snapshot, tmp_path: Path) -> None:
    baseline = tmp_path / "memory.json"
    command("check", LEAK, "--baseline", baseline, "--update")
    check = leak.check(max_peak="1GiB", no_leaks=True, baseline=baseline, tolerance="64MiB")
    options = ("--max-peak", "1GiB", "--no-leaks", "--baseline", baseline, "--tolerance", "64MiB")
    assert check.json == json.loads(command("check", LEAK, *options, "--json"))
    assert str(check) + "\n" == command("check", LEAK, *options)
    assert not check.ok and check.verdict == "broken" and len(check.broken) == 2, check.broken
    kept = leak.check(max_peak=4 << 30, max_fragmentation=0.5)
    assert kept.ok and kept.broken == ()
    with pytest.raises(ValueError, match="no limit was given"):
        leak.check()
    with pytest.raises(ValueError, match="share from 0 to 1"):
        leak.check(max_fragmentation=20)
    with pytest.raises(ValueError, match="`max_growth`"):
        leak.check(max_growth="much")


def test_a_prediction_has_names(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, torch\nprint('noise')\nkept = [torch.zeros(int(sys.argv[1]), device='cuda') for _ in range(4)]\n"
    )
    fits = oomph.predict([program, str(1 << 20)], gpu="t4", once=True)
    assert fits.fits and fits.is_exact and fits.peak_allocated == 16 << 20
    assert fits.total == fits.peak_reserved + fits.json["context"] and fits.headroom == fits.json["gpu"]["memory"] - fits.total
    assert str(fits).startswith("fits on ") and [device.device for device in fits.devices] == [0]
    too_large = oomph.predict([program, str(1 << 30)], gpu="t4", gpu_memory="8GiB", once=True)
    assert not too_large.fits and too_large.headroom < 0 and "does not fit" in str(too_large)
    with pytest.raises(ValueError, match="expected a size such as 24GiB, or one of"):
        oomph.predict([program], gpu="no such card")
    with pytest.raises(ValueError, match="IndexError"):
        oomph.predict([program], gpu="t4", once=True)


def test_several_files_are_ranks(tmp_path: Path) -> None:
    for rank, name in enumerate(SNAPSHOTS[:2]):
        shutil.copy(FIXTURES / name, tmp_path / f"rank{rank}.pickle.xz")
    paths = sorted(tmp_path.iterdir())
    for job in (oomph.load(tmp_path), oomph.load(paths), oomph.load(f"{tmp_path}/*.xz")):
        assert job.files == tuple(map(str, paths)) and len(job.ranks) == 2
        assert job.report().json == json.loads(command("report", "--json", tmp_path))
        assert str(job.report()) + "\n" == command("report", tmp_path)
        assert job.peak == max((rank.peak for rank in job.ranks), key=lambda peak: peak.allocated)
        assert job.verify().json == json.loads(command("simulate", "--json", "--verify", tmp_path))
        assert job.diff(job).json == json.loads(command("diff", "--json", tmp_path, tmp_path))
        with pytest.raises(ValueError, match="a what-if is about one run"):
            job.simulate(gpu="24GiB")
        with pytest.raises(ValueError, match="take it from one of `.ranks`"):
            job.table("events")


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_tables_are_those_of_the_export(name: str, tmp_path: Path) -> None:
    path = FIXTURES / name
    command("export", path, "--to", "arrow", "-o", tmp_path)
    snapshot = oomph.load(path)
    assert list(snapshot.tables) == TABLES
    for name, table in snapshot.tables.items():
        expected = pyarrow.feather.read_table(tmp_path / f"{name}.arrow")
        assert pyarrow.table(table).equals(expected), name
        assert pyarrow.schema(table).equals(expected.schema)
        assert table.columns == expected.column_names
        assert pyarrow.table(table).equals(expected), "a table can be read again"


def test_pandas_polars_and_duckdb_take_tables(leak: oomph.Snapshot) -> None:
    blocks = leak.table("blocks")
    expected = pyarrow.table(blocks).column("size").to_pylist()
    assert pandas.DataFrame.from_arrow(blocks)["size"].tolist() == expected
    assert polars.DataFrame(blocks)["size"].to_list() == expected
    assert duckdb.sql("SELECT sum(size) FROM blocks").fetchall() == [(sum(expected),)]
    by_line = "SELECT site_line, sum(size) FROM blocks WHERE alloc_event <= {} AND (free_requested_event IS NULL OR \
        free_requested_event > {}) GROUP BY 1 ORDER BY 2 DESC LIMIT 1"
    event = leak.peak.event
    top = leak.peak.groups[0]
    assert top.site is not None
    assert duckdb.sql(by_line.format(event, event)).fetchall() == [(top.site.line, top.bytes)]


def test_rows_are_made_as_they_are_read(leak: oomph.Snapshot) -> None:
    large = oomph.load(FIXTURES / "large/gpt2_150_steps.pickle.xz")
    reader = pyarrow.RecordBatchReader.from_stream(large.table("events"))
    del large
    first = reader.read_next_batch()
    assert first.num_rows == 65_536, "a batch, not the table"
    assert first.num_rows + sum(batch.num_rows for batch in reader) > 400_000


def test_a_table_that_nobody_knows(leak: oomph.Snapshot) -> None:
    with pytest.raises(ValueError, match="there is no table `allocs`\n  cause: the tables are events, blocks"):
        leak.table("allocs")
    with pytest.raises(KeyError):
        leak.tables["allocs"]


def refused(kind: type[Exception], *words: str, **options: object) -> None:
    with pytest.raises(kind) as caught:
        oomph.load(LEAK).simulate(**options)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words), caught.value


def test_mistakes_are_built_in_exceptions(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"`/nowhere` does not exist\n  cause: .*\nhint: check the path"):
        oomph.load("/nowhere")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        oomph.load(tmp_path / "*.pickle")
    with pytest.raises(FileNotFoundError, match="has no snapshots"):
        oomph.load(tmp_path)
    with pytest.raises(ValueError, match="is not a CUDA memory snapshot"):
        oomph.load(ROOT / "README.md")
    with pytest.raises(ValueError, match="no snapshots were given"):
        oomph.load([])
    evil = tmp_path / "evil.pickle"
    evil.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ValueError, match="was refused: it would run code"):
        oomph.load(evil)
    refused(ValueError, "24Gx", "expected a size such as 24GiB", gpu="24Gx")
    refused(ValueError, "needs `gpu`", fraction=0.5)
    refused(ValueError, "does not take the settings", conf="max_split_size_mb:x")
    refused(IsADirectoryError, "cannot be written", output=tmp_path)
    with pytest.raises(ValueError, match="no out-of-memory event"):
        oomph.load(LEAK).report(at="oom")


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "locked.pickle"
    path.write_bytes(b"")
    path.chmod(0)
    with as_nobody(), pytest.raises(PermissionError, match="cannot be read"):
        oomph.load(path)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, who may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


HOSTILE = "<img src=x onerror=alert(1)>&\"'"


def hostile(tmp_path: Path) -> Path:
    """A snapshot whose names are markup."""
    frame = {"filename": f"/home/{HOSTILE}.py", "name": HOSTILE, "line": 1}
    block = {"address": 0, "size": 2 << 20, "requested_size": 2 << 20, "state": "active_allocated", "frames": [frame]}
    segment = {"device": 0, "address": 0, "total_size": 2 << 20, "stream": 0, "segment_type": "large", "blocks": [block]}
    path = tmp_path / f"{HOSTILE.replace('/', '')}.json"
    path.write_text(json.dumps({"segments": [segment], "device_traces": []}))
    return path


def test_html_has_no_markup_from_the_file(tmp_path: Path) -> None:
    snapshot = oomph.load(hostile(tmp_path))
    for by in ("site", "stack", "category", "size"):
        page = snapshot.report(by=by)._repr_html_()
        assert "<img" not in page and "&lt;img src=x" in page, by
    assert "<img" not in snapshot._repr_html_()
    assert "<img" not in snapshot.diff(snapshot)._repr_html_()
    assert "&lt;img src=x" in snapshot.diff(snapshot)._repr_html_()


def test_a_notebook_shows_findings_and_lines(leak: oomph.Snapshot) -> None:
    page = leak._repr_html_()
    for words in ("LEAK", "171 MiB per step", "leak_infer_outputs.py:9 predict", "2.48 GiB", "torch.inference_mode()"):
        assert words in page, words


def longest_pause(work: threading.Thread) -> tuple[float, float]:
    """How long this thread stood still at most while the other one worked, and how long that took."""
    work.start()
    begun = last = time.perf_counter()
    longest = 0.0
    while work.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest, last - begun


def test_other_threads_go_on(tmp_path: Path) -> None:
    path = tmp_path / "large.pickle"
    path.write_bytes(lzma.decompress((FIXTURES / "large/gpt2_150_steps.pickle.xz").read_bytes()))
    snapshots: list[oomph.Snapshot] = []
    loading = longest_pause(threading.Thread(target=lambda: snapshots.append(oomph.load(path))))
    searching = longest_pause(threading.Thread(target=lambda: snapshots[0].search()))
    for pause, whole in (loading, searching):
        assert pause < whole / 2, f"stood still for {pause:.3f} s of {whole:.3f} s"


def test_torch_is_not_imported() -> None:
    program = f"import sys, oomph; oomph.load({str(LEAK)!r}).report(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_names_are_found_when_they_are_asked_for() -> None:
    program = "import sys, oomph; assert 'oomph._native' not in sys.modules; oomph.load; assert 'load' in dir(oomph)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        oomph.lode
