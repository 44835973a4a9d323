"""`oomph fleet`: a simulated job with known faults, made from a real recording (`bench/fleet.py`)."""

import importlib.util
import json
import pathlib
import pickle
import re
import shutil
import stat
import subprocess
import sys

import duckdb
import polars
import pyarrow
import pytest

from conftest import FIXTURES, OOMPH, ROOT
from schemas import parsed

RANKS = 48
SCREEN_LINES = 60
"""With every kind of fault at once; each section is bounded."""
PAGE = ROOT / "docs/reference/fleet-tables.md"

specification = importlib.util.spec_from_file_location("bench_fleet", ROOT / "bench/fleet.py")
assert specification and specification.loader
simulated = importlib.util.module_from_spec(specification)
sys.modules["bench_fleet"] = simulated
specification.loader.exec_module(simulated)


@pytest.fixture(scope="module")
def base() -> "simulated.Base":
    return simulated.Base(simulated.BASE)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, base: "simulated.Base") -> pathlib.Path:
    folder = tmp_path_factory.mktemp("fleet") / "job"
    simulated.make(folder, RANKS, base, is_clean=False)
    return folder


def oomph(*arguments: str | pathlib.Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([OOMPH, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def fleet(*arguments: str | pathlib.Path) -> dict:
    return parsed("fleet", oomph("fleet", "--json", *arguments).stdout)


def test_every_injected_fault_is_found_and_none_is_invented(job: pathlib.Path) -> None:
    assert not simulated.judge(fleet(job), simulated.loaded_truth(job))


def test_a_job_without_faults_has_none(tmp_path: pathlib.Path, base: "simulated.Base") -> None:
    truth = simulated.make(tmp_path / "clean", 32, base, is_clean=True)
    answer = fleet(tmp_path / "clean")
    assert not simulated.judge(answer, truth)
    assert answer["spread"] < 0.01
    assert not answer["deviations"] and not answer["failure"] and not answer["broken"] and not answer["missing"]


def test_the_text_is_one_screen_and_names_the_faults(job: pathlib.Path) -> None:
    truth = simulated.loaded_truth(job)
    text = oomph("fleet", job).stdout
    assert len(text.splitlines()) <= SCREEN_LINES
    assert max(map(len, text.splitlines())) <= 100
    for expected in (
        f"{RANKS} ranks · 6 nodes · job {simulated.JOB}",
        f"OUT OF MEMORY  rank {truth.failed[0]} on ",
        "model.py:44 lm_head",
        f"rank {truth.extra[0]}  ",
        f"{truth.nodes[0]} (",
        f"LEAK  train.py:88 log: 20.0 MiB per step, still growing · on 1 of {RANKS - len(truth.broken) - 1} ranks",
        "2.10.0+cu130 on rank",
        f"hold up to 12.0 GiB on GPUs of {truth.crowded[0]}",
        f"rank{truth.broken[0]}.pickle is cut short",
        f"missing: {truth.missing[0]}",
    ):
        assert expected in text


def test_a_report_of_many_ranks_is_the_same_view(job: pathlib.Path) -> None:
    assert oomph("report", job).stdout == oomph("fleet", job).stdout
    assert oomph("report", "--fail-on", "high", job, code=1).stdout
    few = sorted(job.glob("rank[0-9].pickle"))
    assert "peak allocated" in oomph("report", *few[:3]).stdout, "a few ranks have a row each"


def test_a_dimension_can_be_asked_for(job: pathlib.Path) -> None:
    by_node = fleet("--by", "node", job)["dimensions"]
    assert [dimension["name"] for dimension in by_node] == ["node"]
    assert len(by_node[0]["values"]) == 6
    refused = oomph("fleet", "--by", "ep", job, code=2).stderr
    assert "no rank has the dimension `ep`" in refused and "`pp`, `dp`, `local_rank`, `node`" in refused


def test_one_rank_has_its_whole_report(job: pathlib.Path) -> None:
    number = simulated.loaded_truth(job).leaks[0]
    report = oomph("fleet", "--rank", str(number), job).stdout
    assert report == oomph("report", job / f"rank{number}.pickle").stdout
    refused = oomph("fleet", "--rank", "4711", job, code=2).stderr
    assert f"no recording of rank 4711 in `{job}`" in refused and "there are ranks 0 to " in refused


def test_a_rank_is_found_by_what_its_summary_says(job: pathlib.Path, tmp_path: pathlib.Path) -> None:
    number = simulated.loaded_truth(job).leaks[0]
    for path in job.glob(f"rank{number}.*"):
        shutil.copy(path, tmp_path)
    oomph("summarize", tmp_path)
    for path in tmp_path.glob(f"rank{number}.*"):
        path.rename(tmp_path / path.name.replace(f"rank{number}", "part99999"))
    assert str(tmp_path / "part99999.pickle") in oomph("fleet", "--rank", str(number), tmp_path).stdout
    assert f"there are ranks {number}" in oomph("fleet", "--rank", "99999", tmp_path, code=2).stderr


LINES = 600


def write_rank(folder: pathlib.Path, rank: int, last: int) -> None:
    """A rank that holds 1 MiB at each of many lines, more than a summary lists, and `last` bytes at one more."""
    sizes = [1 << 20] * LINES + [last]
    events = [
        {
            "action": "alloc",
            "addr": (line + 1) << 32,
            "size": size,
            "stream": 0,
            "time_us": 1_700_000_000_000_000 + line,
            "frames": [{"name": f"f{line}", "filename": "/job/train.py", "line": line + 1}],
        }
        for line, size in enumerate(sizes)
    ]
    with open(folder / f"rank{rank}.pickle", "wb") as file:
        pickle.dump({"segments": [], "device_traces": [events]}, file, protocol=4)


def test_a_line_that_summaries_do_not_list_is_found_in_the_snapshots(tmp_path: pathlib.Path) -> None:
    for rank in range(6):
        write_rank(tmp_path, rank, last=(100 << 20) if rank == 4 else (1 << 19))
    oomph("summarize", tmp_path)
    (found,) = fleet(tmp_path)["deviations"]
    assert [rank["rank"] for rank in found["ranks"]] == [4]
    difference = found["difference"]
    assert difference["compared"] == "snapshots" and found["unread"] is None
    assert difference["site"]["line"] == LINES + 1 and difference["site_bytes"] == (100 << 20) - (1 << 19)
    # Without the snapshots, the summaries have to do.
    for rank in range(6):
        (tmp_path / f"rank{rank}.pickle").unlink()
    (found,) = fleet(tmp_path)["deviations"]
    assert found["difference"]["compared"] == "shortened_summaries" and "has no snapshot" in found["unread"]
    assert "not compared line by line" in oomph("fleet", tmp_path).stdout


def test_summaries_give_the_same_answer_as_snapshots(job: pathlib.Path, tmp_path: pathlib.Path) -> None:
    expected = oomph("fleet", "--json", job).stdout
    copy = tmp_path / "job"
    shutil.copytree(job, copy)
    for path in copy.glob("*.pickle"):
        path.chmod(0o640)
    done = oomph("summarize", copy, code=2)
    truth = simulated.loaded_truth(job)
    assert done.stderr.count("not summarized") == len(truth.broken)
    summaries = sorted(copy.glob("*.summary.arrow"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in summaries} == {0o640}
    assert len(summaries) == RANKS - len(truth.broken) - len(truth.missing)
    assert max(path.stat().st_size for path in summaries) < 100_000
    with pyarrow.ipc.open_file(summaries[0]) as file:
        assert file.read_all()["peaks"][0].as_py()[0]["job"] == simulated.JOB
    # Only summaries that match are used: this one says something else than its snapshot.
    lied, other = (copy / f"rank{number}.summary.arrow" for number in (truth.extra[0], truth.leaks[0]))
    lied.write_bytes(other.read_bytes())
    # What is not read cannot be damaged: same size and end, another beginning.
    whole = copy / summaries[1].name.replace(".summary.arrow", ".pickle")
    whole.write_bytes(b"x" * 1000 + whole.read_bytes()[1000:])
    assert oomph("fleet", "--json", copy).stdout.replace(str(copy), str(job)) == expected


def test_gathered_summaries_give_the_same_answer(job: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """What a distributed reader does: it lists the ranks, summarizes each where the data is, and gathers the results."""
    part, gathered = tmp_path / "part", tmp_path / "gathered"
    part.mkdir()
    gathered.mkdir()
    for file in ["meta.json", *(path.name for path in job.glob("rank[0-9].*"))]:
        (part / file).symlink_to(job / file)
    listed = json.loads(oomph("fleet", "--list", part).stdout)["files"]
    for index, file in enumerate(listed):
        done = subprocess.run([OOMPH, "summarize", "--for-fleet", file["source"], "-o", "-"], capture_output=True, check=True)
        (gathered / f"{index:06}.summary.arrow").write_bytes(done.stdout)
    (part / "rank1.pickle").unlink()
    (part / "rank1.pickle").write_bytes(b"")
    done = subprocess.run([OOMPH, "summarize", "--for-fleet", part / "rank1.pickle", "-o", "-"], capture_output=True, check=True)
    (gathered / "000001.summary.arrow").write_bytes(done.stdout)
    assert oomph("fleet", "--json", gathered).stdout == oomph("fleet", "--json", part).stdout
    (gathered / "000002.summary.arrow").unlink()
    (gathered / "000002.failed.json").write_text(json.dumps({"source": listed[2]["source"], "error": "was lost with its node"}))
    broken = fleet(gathered)["broken"]
    assert {"rank": 2, "source": listed[2]["source"], "reason": "was lost with its node"} in broken


def test_plain_snapshots_are_compared_too(tmp_path: pathlib.Path) -> None:
    for rank in range(4):
        shutil.copy(FIXTURES / "zoo/leak_infer_outputs.pickle.xz", tmp_path / f"rank{rank}.pickle.xz")
    answer = fleet(tmp_path)
    assert (answer["read"], answer["expected"], answer["dimensions"], answer["deviations"]) == (4, 4, [], [])
    assert next((one["kind"], one["ranks"]) for one in answer["findings"]) == ("leak", [0, 1, 2, 3])


def test_what_cannot_be_read_at_all_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rank0.pickle").write_bytes(b"")
    refused = oomph("fleet", tmp_path, code=2).stderr
    assert "none of the 1 snapshots can be read" in refused and "is empty" in refused
    (tmp_path / "rank0.pickle").unlink()
    assert "has no snapshots" in oomph("fleet", tmp_path, code=2).stderr
    assert "cannot be read" in oomph("fleet", tmp_path / "nowhere", code=2).stderr
    assert "`ftp://` is not known" in oomph("fleet", "ftp://host/run", code=2).stderr


def test_tables_are_read_as_the_page_says(job: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = oomph("fleet", "--to", "parquet", "-o", tmp_path / "tables", job)
    truth = simulated.loaded_truth(job)
    read = RANKS - len(truth.broken) - len(truth.missing)
    assert f"wrote peaks {read} · dimensions {2 * read} · " in done.stderr
    highest = fleet(job)["allocated"]["highest_rank"]["rank"]
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert queries and programs
    answers = [duckdb.sql(query).fetchall() for query in queries]
    assert len(answers[0]) == read and answers[0][0][1] == highest, "the first example lists peaks, the highest first"
    assert all(answers)
    for program in programs:
        names: dict = {}
        exec(program, names)
        assert isinstance(names["frame"], polars.DataFrame) and names["frame"].height > 0
    columns = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    written = {
        column
        for path in (tmp_path / "tables").glob("job=*/rank=0/*.parquet")
        for column in polars.read_parquet(path, hive_partitioning=True).columns
    }
    assert written <= columns, "every column is described"
