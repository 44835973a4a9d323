"""`oomph fleet` on a real Ray cluster: two nodes of several processes each, one of which is killed while it reads a rank."""

import json
import os
import pathlib
import re
import select
import subprocess
import sys
import threading

import pytest

import oomph
from conftest import FIXTURES, OOMPH, ROOT
from oomph import ray_engine

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
pytestmark = pytest.mark.nightly

RANKS = 16
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 250, "health_check_failure_threshold": 4}
"""A node that is gone is noticed within a second; by default that takes Ray a quarter of a minute."""

PROGRAM = """#!/bin/sh
# The real program, which notes the ranks that it summarizes. On a node that is to be killed, it tells the test that it has
# begun, and waits; other nodes go on to a point from which that node has to begin.
if [ "$1" = summarize ]; then
    echo "$3" >> "{state}/summarized"
    read -r _ _ _ node _ < "/proc/$PPID/stat"
    doomed=$(cat "{state}/doomed" 2>/dev/null)
    fails=$(cat "{state}/fails" 2>/dev/null || echo nothing)
    case "$3" in *"/$fails"*) echo "error: no" >&2; exit 9 ;; esac
    if [ "$node" = "$doomed" ]; then
        echo >> "{state}/begun"
        read -r _ < "{state}/forever"
    elif [ -n "$doomed" ] && [ "$(wc -l < "{state}/summarized")" -gt {midway} ]; then
        read -r _ < "{state}/killed"
    fi
fi
exec "{program}" "$@"
"""
MIDWAY = 6
TIMEOUT_SECONDS = 90


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> pathlib.Path:
    """Ranks of two kinds, one of them cut off."""
    folder = tmp_path_factory.mktemp("ray") / "job"
    folder.mkdir()
    for rank in range(RANKS):
        name = "torch-2.6.0" if rank == 11 else "torch-2.4.1"
        content = (FIXTURES / f"torch/{name}.pickle.xz").read_bytes()
        (folder / f"rank{rank}.pickle.xz").write_bytes(content[: 700 if rank == 4 else None])
    return folder


@pytest.fixture(scope="module")
def state(job) -> pathlib.Path:
    """A folder that the program of the tasks looks into."""
    folder = job.parent / "state"
    folder.mkdir()
    for name in ("begun", "killed", "forever"):
        os.mkfifo(folder / name)
    program = folder / "oomph"
    program.write_text(PROGRAM.format(state=folder, program=OOMPH, midway=MIDWAY))
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def cluster(state):
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OOMPH", str(state / "oomph"))
        options = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**options, "_system_config": HEALTH})
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
        cluster.shutdown()


def local(job: pathlib.Path) -> bytes:
    return subprocess.run([OOMPH, "fleet", "--json", job], capture_output=True, check=True).stdout


def test_a_node_that_is_killed_changes_nothing(cluster, job, state, tmp_path):
    """Ray runs its tasks again on another node, and the answer is that of the local engine, byte for byte."""
    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    (state / "doomed").write_text(str(node.all_processes["raylet"][0].process.pid))
    # Open for both, so that neither side waits for the other to open it.
    begun, killed, forever = (os.open(state / name, os.O_RDWR) for name in ("begun", "killed", "forever"))
    finished = []

    def kill() -> None:
        has_begun = bool(select.select([begun], [], [], TIMEOUT_SECONDS)[0])
        finished.append(len(list(tmp_path.glob("*.summary.arrow"))) if has_begun else None)
        cluster.remove_node(node, allow_graceful=False)
        (state / "doomed").unlink()
        os.write(killed, b"\n")

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = ray_engine.summarize([str(job)], str(tmp_path))
    killer.join()
    # Lets the process go that was reading on the node.
    os.write(forever, b"\n")
    for descriptor in (begun, killed, forever):
        os.close(descriptor)
    assert finished[0] is not None and finished[0] < RANKS, "it was killed midway"
    assert (outcome.count, outcome.failed, outcome.lost_nodes) == (RANKS, [], 1)
    summarized = (state / "summarized").read_text().splitlines()
    assert len(summarized) > RANKS and len(set(summarized)) == RANKS, "a rank was read again"
    done = subprocess.run([OOMPH, "fleet", "--json", tmp_path], capture_output=True, check=True)
    assert done.stdout == local(job)
    answer = json.loads(done.stdout)
    assert (answer["read"], [broken["rank"] for broken in answer["broken"]]) == (RANKS - 1, [4])
    assert list(ray_engine.notes(outcome)) == ["1 node of the Ray cluster went away; the others read its ranks"]


def test_a_rank_whose_task_fails_for_good_is_named(cluster, job, state, tmp_path):
    (state / "fails").write_text("rank7.")
    try:
        outcome = ray_engine.summarize([str(job)], str(tmp_path))
    finally:
        (state / "fails").unlink()
    [(source, reason)] = outcome.failed
    assert source.endswith("rank7.pickle.xz") and reason.endswith("error: no")
    done = subprocess.run([OOMPH, "fleet", "--json", tmp_path], capture_output=True, check=True)
    assert {broken["rank"] for broken in json.loads(done.stdout)["broken"]} == {4, 7}


def test_python_and_the_command_give_the_answer_of_the_local_engine(cluster, job, monkeypatch):
    monkeypatch.chdir(job.parent)
    answer = oomph.fleet("job", engine="ray")
    expected = oomph.fleet("job")
    assert answer.json == expected.json
    assert str(answer).splitlines()[0] == str(expected).splitlines()[0]
    assert [broken["rank"] for broken in answer.broken] == [4]
    command = [sys.executable, "-m", "oomph", "fleet", "--json", "job"]
    done = subprocess.run([*command, "--engine", "ray"], capture_output=True, check=True)
    assert done.stdout == subprocess.run(command, capture_output=True, check=True).stdout


def test_the_lines_of_the_readme_run(cluster, job, tmp_path):
    shown = re.search(r"```sh\n(oomph fleet --engine ray .*\n)(python .*\n)```", (ROOT / "README.md").read_text())
    assert shown
    for name, module in (("oomph", "-m oomph"), ("python", "")):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for line in shown.groups():
        command = line.replace("s3://bucket/run", str(job))
        done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{RANKS} ranks · {RANKS - 1} read"), line


def test_without_ray_the_way_to_install_it_is_shown(job, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install oomph\[ray\]"):
        oomph.fleet(job, engine="ray")
    code = "import sys; sys.modules['ray'] = None; from oomph.ray_engine import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, tmp_path, job], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", ""), "the command says it"


def test_an_address_without_a_cluster_is_an_error_at_once(job, tmp_path):
    environment = {**os.environ, "OOMPH": str(OOMPH), "RAY_ADDRESS": "127.0.0.1:1"}
    command = [sys.executable, "-m", "oomph.ray_engine", str(tmp_path), str(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing answers at `127.0.0.1:1`" in done.stderr and "Traceback" not in done.stderr


def test_what_cannot_be_listed_is_an_error_before_ray_starts(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        ray_engine.summarize([str(tmp_path / "nowhere")], str(tmp_path))
    with pytest.raises(ValueError, match="expected `local` or `ray`"):
        oomph.fleet(tmp_path, engine="spark")
