"""Where each process of a job is: its rank, node and index in each dimension of parallelism, noted by the recorder."""

import json
import subprocess

import pytest

from conftest import FORKING_PYTHON, MODEL, OOMPH

RANKS = 4

LAUNCHER = """
    import os, sys, types
    import torch, torch.distributed as dist

    def launched(make):
        \"\"\"A process per rank, with the variables that `torchrun` sets; each trains after `make()` has made its groups.\"\"\"
        children = []
        for rank in range(4):
            child = os.fork()
            if child == 0:
                size = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
                os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank % 2), **size, "TORCHELASTIC_RUN_ID": "job-7"})
                dist.init_process_group("gloo", store=dist.FileStore(os.path.abspath("store"), 4), rank=rank, world_size=4)
                return rank, make()
            children.append(child)
        failed = [os.waitpid(child, 0)[1] for child in children]
        sys.stdout.flush()
        os._exit(int(any(failed)))
"""
"""Comes before the program; the parent ends inside of `launched`."""


def jobs(recorded) -> list[dict]:
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "part of the recording is missing" not in recorded.done.stderr
    return [recorded.json(rank)["job"] for rank in range(RANKS)]


def indices(job: dict) -> dict[str, tuple[int, int]]:
    return {dimension["name"]: (dimension["index"], dimension["size"]) for dimension in job["dimensions"]}


def test_each_rank_notes_its_place_in_the_device_mesh(run):
    """Also when the groups are gone at the end; what is flattened from other dimensions is not one of its own."""
    recorded = run(
        LAUNCHER
        + """
    from torch.distributed.device_mesh import init_device_mesh

    def make():
        world = init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
        mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "cp", "tp"))
        return world, mesh, mesh["pp", "tp"]._flatten("pp_tp"), mesh["tp"]

    rank, meshes = launched(make)
    before = [repr(mesh) for mesh in meshes], len(dist.distributed_c10d._world.pg_map)
"""
        + MODEL
        + """
    train(2)
    total = torch.tensor([rank])
    dist.all_reduce(total, group=meshes[1].get_group("tp"))
    assert total.item() == (1 if rank < 2 else 5)
    assert before == ([repr(mesh) for mesh in meshes], len(dist.distributed_c10d._world.pg_map))
    dist.destroy_process_group()
    del meshes
    train(1)
"""
    )
    found = jobs(recorded)
    assert [indices(job) for job in found] == [{"pp": (rank // 2, 2), "tp": (rank % 2, 2)} for rank in range(RANKS)]
    assert [(job["rank"], job["local_rank"], job["world_size"]) for job in found] == [(r, r % 2, 4) for r in range(RANKS)]
    assert {job["id"] for job in found} == {"job-7"}
    assert {job["node"] for job in found} == {recorded.json(0)["host"]}
    done = subprocess.run([OOMPH, "fleet", "--json", recorded.folder], capture_output=True, text=True, check=True)
    fleet = json.loads(done.stdout)
    assert (fleet["jobs"], fleet["read"]) == (["job-7"], RANKS)
    assert {"pp", "tp"} <= set(fleet["differs_in"])


def test_megatrons_ranks_and_described_groups_are_dimensions(run):
    """One program for each pair of ranks: Megatron-Core in one, plain process groups in the other."""
    recorded = run(
        LAUNCHER
        + """
    def make():
        rank = dist.get_rank()
        groups = [dist.new_group([low, low + 1], group_desc="replica") for low in (0, 2)]
        dist.new_group([0, 1, 2, 3], group_desc="everyone")
        if rank >= 2:
            return groups
        state = types.ModuleType("megatron.core.parallel_state")
        sizes = {"tensor_model": (rank % 2, 2), "pipeline_model": (rank // 2, 2), "data": (0, 1), "context": (0, 1)}
        for word, (index, size) in sizes.items():
            setattr(state, f"get_{word}_parallel_rank", lambda index=index: index)
            setattr(state, f"get_{word}_parallel_world_size", lambda size=size: size)
        def not_made():
            raise AssertionError("expert model parallel group is not initialized")
        state.get_expert_model_parallel_rank = state.get_expert_model_parallel_world_size = not_made
        sys.modules["megatron.core.parallel_state"] = state
        return groups

    rank, groups = launched(make)
"""
        + MODEL
        + """
    train(2)
    assert not any(name.startswith(("deepspeed", "megatron")) for name in sys.modules) or rank < 2
    dist.destroy_process_group()
"""
    )
    found = [indices(job) for job in jobs(recorded)]
    assert found[:2] == [{"pp": (0, 2), "tp": (0, 2)}, {"pp": (0, 2), "tp": (1, 2)}]
    assert found[2:] == [{"replica": (0, 2)}, {"replica": (1, 2)}]


def test_deepspeeds_pipeline_and_experts_are_read_without_calling_it(run):
    """Its functions make groups when they find none."""
    recorded = run(
        LAUNCHER
        + """
    import collections

    class ProcessTopology:
        def get_axis_names(self):
            return ["pipe", "data"]
        def get_dim(self, axis):
            return 2
        def get_coord(self, rank):
            return collections.namedtuple("ProcessCoord", ["pipe", "data"])(rank // 2, rank % 2)

    class PipelineParallelGrid:
        def __init__(self):
            self._topo = ProcessTopology()

    def make():
        experts = [dist.new_group([low, low + 1]) for low in (0, 2)]
        topology = types.ModuleType("deepspeed.runtime.pipe.topology")
        topology.PipelineParallelGrid = PipelineParallelGrid
        groups = types.ModuleType("deepspeed.utils.groups")
        groups.mpu, groups._EXPERT_PARALLEL_GROUP = None, {"ep_size_2": experts[dist.get_rank() // 2]}
        groups._get_data_parallel_rank = lambda: dist.get_rank(dist.new_group([0, 1, 2, 3]))
        sys.modules.update({"deepspeed.runtime.pipe.topology": topology, "deepspeed.utils.groups": groups})
        return PipelineParallelGrid()

    rank, grid = launched(make)
    before = len(dist.distributed_c10d._world.pg_map)
"""
        + MODEL
        + """
    train(2)
    assert len(dist.distributed_c10d._world.pg_map) == before
"""
    )
    expected = [{"pp": (rank // 2, 2), "dp": (rank % 2, 2), "ep": (rank % 2, 2)} for rank in range(RANKS)]
    assert [indices(job) for job in jobs(recorded)] == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, None),
        (
            {"SLURM_JOB_ID": "81", "SLURM_NTASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURMD_NODENAME": "n2"},
            {"id": "81", "node": "n2", "rank": 5, "local_rank": 1, "world_size": 8, "dimensions": []},
        ),
        (
            {"PBS_JOBID": "9.head", "PMI_RANK": "3", "PMI_SIZE": "4", "NODE_NAME": "n1", "MPI_LOCALRANKID": "1"},
            {"id": "9.head", "node": "n1", "rank": 3, "local_rank": 1, "world_size": 4, "dimensions": []},
        ),
    ],
    ids=["alone", "one task", "slurm", "pbs"],
)
def test_schedulers_say_where_a_process_is(variables, expected, monkeypatch):
    from oomph.recording.job_place import JobPlace

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", *(name for name in variables)):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert JobPlace().as_json() == expected


def test_record_notes_the_place_and_survives_a_hostile_mesh(tmp_path):
    """The program's objects may raise: their dimensions are left out, and the rest is recorded."""
    (tmp_path / "train.py").write_text(
        """
import os, torch, oomph
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

class Mesh(DeviceMesh):
    def __init__(self):
        pass
    def get_coordinate(self):
        raise RuntimeError("not yours")

os.environ["KUBERNETES_JOB_NAME"] = "pretrain"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = Mesh()
with oomph.record("own", holders=False):
    kept = torch.zeros(1000)
"""
    )
    command = [FORKING_PYTHON.cpu, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    job = json.loads((tmp_path / "own/rank0.json").read_text())["job"]
    assert (job["id"], job["rank"], job["world_size"], job["dimensions"]) == ("pretrain", 0, 1, [])
