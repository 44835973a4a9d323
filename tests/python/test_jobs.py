"""Jobs of many ranks, predicted as a whole: some ranks run, and stand in for those that are like them."""

import json
import subprocess
import textwrap

import pytest

from conftest import FORKING_PYTHON, ROOT, Predict
from schemas import parsed

pytestmark = pytest.mark.long

BEGIN = """
import os, time, torch, torch.distributed as dist
from torch import nn
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
"""

DATA_PARALLEL = (
    BEGIN
    + """
model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024).to(device))
for _ in range(3):
    model(torch.randn(4, 1024, device=device)).sum().backward()
    time.sleep(0.3)  # PyTorch's watchdog looks at the collectives meanwhile

# 4 MiB each: parameters, gradients, the new one of a parameter, buckets, and the buckets of the first step.
assert torch.cuda.max_memory_allocated() >= 20 << 20, torch.cuda.max_memory_allocated()

# Small messages between the ranks that run, on the GPU and on the CPU.
found = [None] * world
dist.all_gather_object(found, {"rank": rank})  # of different lengths, and more than 64 KiB together
assert found[0] == {"rank": 0} and found[world - 1] == {"rank": world - 1}, found[:2]
cpu = dist.new_group(backend="gloo")
said = [{"seed": 17}] if rank == 0 else [None]
dist.broadcast_object_list(said, src=0, group=cpu)
assert said == [{"seed": 17}], said
total = torch.ones(2)
dist.all_reduce(total, group=cpu)
assert total.tolist() == [world, world], total
highest = torch.tensor([rank])
dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=cpu)
assert highest.item() == world - 1
dist.barrier(group=cpu)
dist.barrier()
dist.destroy_process_group()
"""
)

MESH = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
"""

STAGES = (
    BEGIN
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
stages = int(os.environ.get("STAGES", 2))
mesh = init_device_mesh("cuda", (stages, world // stages), mesh_dim_names=("pp", "dp"))
here, stages = mesh["pp"].get_local_rank(), mesh["pp"].size()

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))
        self.lm_head = nn.Linear(512, 8192) if here == stages - 1 else None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x if self.lm_head is None else self.lm_head(x)

part = Part().to(device)
stage = PipelineStage(part, here, stages, device, group=mesh["pp"].get_group())
schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: output.sum())
for _ in range(2):
    x = torch.randn(8, 512, device=device)
    kinds = [x] if here == 0 else []
    targets = {"target": x, "losses": []} if here == stages - 1 else {}
    schedule.step(*kinds, **targets)
dist.destroy_process_group()
"""
)


def run(
    predict: Predict, program: str, *options: str, launcher: str = "--nproc-per-node=4", env: dict | None = None
) -> subprocess.CompletedProcess[str]:
    predict.write(program)
    options = ("--gpu", "h100", "--once", "--json", "--steps", "all", "--python", FORKING_PYTHON.emulated, *options)
    launch = ["-m", "torch.distributed.run", *launcher.split(), "train.py"]
    # The launcher starts the ranks with this interpreter.
    return predict.run("predict", *options, *launch, env={"PYTHON_EXEC": FORKING_PYTHON.emulated, **(env or {})})


def answer(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode in (0, 1), done.stderr
    return parsed("predict", done.stdout)


@pytest.mark.nightly
def test_two_ranks_stand_for_4096(predict: Predict) -> None:
    found = answer(run(predict, DATA_PARALLEL, "--gpus", "8", "--nodes", "512", launcher="--nproc-per-node=8"))
    job = found["job"]
    assert (job["world_size"], job["nodes"], job["gpus_per_node"]) == (4096, 512, 8)
    assert job["dimensions"] == [{"name": "dp", "size": 4096, "pipeline": False}]
    assert [(of["rank"], of["stands_for"]) for of in job["ranks"]] == [(0, 4095), (4095, 1)]
    used = [of for of in found["devices"] if of["requests"]]
    assert [(of["rank"], of["device"]) for of in used] == [(0, 0), (4095, 7)]
    # Only the pickled objects have different lengths.
    assert abs(used[0]["peak_allocated"] - used[1]["peak_allocated"]) <= 1024 and used[0]["nccl"] > 0
    assert "imbalance" not in job


@pytest.mark.nightly
def test_ranks_that_run_change_nothing_for_the_others(predict: Predict) -> None:
    # With a device, groups are made by splitting that of all ranks.
    program = (
        BEGIN.replace('("nccl")', '("nccl", device_id=device)')
        + MESH
        + """
halves = dist.split_group(split_ranks=[[2, 3], [0, 1]])
assert dist.get_process_group_ranks(halves) == ([0, 1] if rank < 2 else [2, 3])
total = torch.full((1 << 20,), 1.0, device=device)
dist.all_reduce(total, group=mesh["tp"].get_group())
gathered = [torch.empty_like(total) for _ in range(mesh["dp"].size())]
dist.all_gather(gathered, total, group=mesh["dp"].get_group())
"""
    )
    found = [answer(run(predict, program, "--gpus", "4", "--ranks", ranks)) for ranks in ("1", "all")]
    peaks = [
        {of["rank"]: (of["peak_allocated"], of["peak_reserved"]) for of in one["devices"] if of["requests"]} for one in found
    ]
    assert sorted(peaks[0]) == [0, 1] and sorted(peaks[1]) == [0, 1, 2, 3]
    assert peaks[0][1] == peaks[1][1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ranks", "rank", "arguments", "allocated", "reserved"),
    [
        (2, 1, ["--parallel", "tp"], 478_404_608, 522_190_848),
        (2, 1, ["--parallel", "fsdp2", "--save", "saved"], 566_603_264, 738_197_504),
    ],
    ids=["tensor parallel", "checkpoint"],
)
def test_ranks_need_what_they_needed_on_an_h200(
    predict: Predict, ranks: int, rank: int, arguments: list[str], allocated: int, reserved: int
) -> None:
    """`bench/jobs/compare.py` has more of them, and how they were measured."""
    options = ("--gpu", "h200", "--gpus", str(ranks), "--ranks", str(rank), "--once", "--json", "--steps", "all")
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", str(ROOT / "bench/jobs/transformer.py"), *arguments]
    done = predict.run(
        "predict", *options, "--python", FORKING_PYTHON.emulated, *launch, env={"PYTHON_EXEC": FORKING_PYTHON.emulated}
    )
    found = {of["rank"]: of for of in answer(done)["devices"] if of["requests"]}
    assert (found[rank]["peak_allocated"], found[rank]["peak_reserved"]) == (allocated, reserved)


@pytest.mark.nightly
def test_symmetric_memory_is_counted_outside_of_pytorchs(predict: Predict) -> None:
    program = (
        BEGIN
        + """
import torch.distributed._symmetric_memory as symmetric
shared = symmetric.empty(1 << 26, dtype=torch.uint8, device=device)
handle = symmetric.rendezvous(shared, dist.group.WORLD)
handle.get_buffer(1 - rank, (1024,), torch.uint8)
handle.barrier()
assert torch.cuda.max_memory_allocated() < 1 << 20
"""
    )
    found = answer(run(predict, program, "--gpus", "2", "--ranks", "all", launcher="--nproc-per-node=2"))
    used = [of for of in found["devices"] if of["requests"]]
    # The tensor, and a block for its signals.
    assert [of["symmetric"] for of in used] == [66 << 20, 66 << 20]
    assert used[0]["context"] > used[0]["symmetric"]


@pytest.mark.nightly
def test_the_stage_with_the_head_is_named(predict: Predict) -> None:
    found = answer(run(predict, STAGES, "--gpus", "2", launcher="--nproc-per-node=2"))
    job = found["job"]
    assert [(of["name"], of["size"], of["pipeline"]) for of in job["dimensions"]] == [("pp", 2, True)]
    assert [of["position"] for of in job["ranks"]] == [{"pp": 0}, {"pp": 1}]
    uneven = job["imbalance"]
    assert (uneven["rank"], uneven["lowest"]) == (1, 0)
    assert uneven["modules"][0]["module"].endswith("lm_head")
    # Weights and their gradients, and logits of four samples at a time.
    assert uneven["modules"][0]["bytes"] >= 2 * 512 * 8192 * 4
    # It has fewer layers than would have to go.
    assert "layers_to_move" not in uneven


@pytest.mark.nightly
def test_layouts_are_tried(predict: Predict) -> None:
    program = BEGIN + MESH + "kept = torch.empty((1 << 30) // mesh['tp'].size(), dtype=torch.uint8, device=device)"
    done = run(predict, program, "--gpus", "4", "--ranks", "0", "--vary", "mesh=dp4tp1,dp1tp4,dp3tp1")
    varied = answer(done)["vary"]
    ran = {of["label"]: of for of in varied["runs"]}
    assert ran["dp3tp1"]["error"] == "the job has 4 ranks"
    assert [ran[name]["peak_allocated"] >> 28 for name in ("dp4tp1", "dp1tp4")] == [4, 1]
    assert varied["first_fitting"] == "dp4tp1" and varied["needs_least"] == "dp1tp4"


@pytest.mark.nightly
def test_the_rank_that_runs_out_of_memory_is_the_answer(predict: Predict) -> None:
    program = (
        BEGIN
        + """
kept = torch.empty((60 << 30) if rank == world - 1 else (1 << 30), dtype=torch.uint8, device=device)
kept = [kept, torch.empty(30 << 30, dtype=torch.uint8, device=device)]
dist.all_reduce(torch.ones(1, device=device))
"""
    )
    found = answer(run(predict, program, "--gpus", "2", "--ranks", "all", launcher="--nproc-per-node=2"))
    assert found["verdict"] == "does_not_fit"
    assert found["peak_allocated"] >= 90 << 30 and "OutOfMemoryError" in found["exception"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "dist.all_reduce(torch.ones(3 + (rank == 3), device=device))",
            ["the ranks call different collectives", "ncclAllReduce of 3 elements", "ncclAllReduce of 4 elements", "rank 3"],
        ),
        (
            "dist.recv(torch.ones(3, device=device), src=3 - rank)",
            ["all ranks wait for each other", "rank 0 waits", "rank 3 waits"],
        ),
    ],
    ids=["mismatch", "deadlock"],
)
@pytest.mark.nightly
def test_ranks_that_would_hang_end_with_an_error(predict: Predict, program: str, words: list[str]) -> None:
    done = run(predict, BEGIN + program, "--gpus", "4", "--ranks", "0,3")
    assert done.returncode == 2, done.stdout
    for word in words:
        assert word in done.stderr, done.stderr
    # The traceback of a rank names the line.
    assert f'train.py", line {len((BEGIN + program).splitlines())}' in done.stderr


@pytest.mark.nightly
def test_commands_without_a_launcher_of_python(predict: Predict) -> None:
    program = """
        import os, torch
        assert "RANK" not in os.environ
        rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
        torch.empty((rank + 1) << 20, dtype=torch.uint8, device="cuda")
        assert size == 16
    """
    predict.write(program)
    options = ("--gpu", "h100", "--gpus", "8", "--once", "--json", "--steps", "all", "--python", FORKING_PYTHON.emulated)
    done = predict.run("predict", *options, "--", "mpirun", "-np", "16", "-x", "PATH", FORKING_PYTHON.emulated, "train.py")
    found = answer(done)
    assert [of["rank"] for of in found["job"]["ranks"]] == [0, 15]
    assert found["peak_allocated"] == 16 << 20


@pytest.mark.nightly
def test_a_program_that_spawns_its_ranks(predict: Predict) -> None:
    program = textwrap.dedent("""
        import torch, torch.distributed as dist, torch.multiprocessing as mp

        def train(rank, world):
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=world)
            x = torch.ones(1 << 20, device="cuda")
            dist.all_reduce(x)
            dist.destroy_process_group()

        if __name__ == "__main__":
            mp.spawn(train, args=(4,), nprocs=4)
    """)
    predict.write(program)
    options = ("--gpu", "h100", "--gpus", "4", "--ranks", "1,3", "--once", "--json", "--steps", "all")
    done = predict.run("predict", *options, "--python", FORKING_PYTHON.emulated, "train.py")
    found = answer(done)
    assert [of["rank"] for of in found["job"]["ranks"]] == [0, 1, 3], json.dumps(found["job"])


@pytest.mark.nightly
def test_ranks_that_do_not_exist_are_an_error(predict: Predict) -> None:
    done = run(predict, DATA_PARALLEL, "--gpus", "4", "--ranks", "0,9")
    assert done.returncode == 2 and "the job has no rank 9: it has 4, 0 to 3" in done.stderr, done.stderr
