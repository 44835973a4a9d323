"""The ledger of a recording: memory of the process by owner, and the owners of private pools."""

import json

import pytest

from conftest import MODEL, Predict

POOLS = """
    import torch

    model = torch.nn.Linear(512, 512, device="cuda")
    compiled = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(64, 512, device="cuda")

    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(x)
        second = torch.cuda.CUDAGraph()
        with torch.cuda.graph(second, pool=graph.pool()):
            again = model(x)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.empty(4 << 20, device="cuda")
"""


def test_the_parts_add_up_to_what_the_driver_counts(run) -> None:
    recorded = run(f"{MODEL}\n    train(3)\n")
    assert recorded.done.returncode == 0, recorded.done.stderr
    ledger = recorded.report()["ledger"]
    rows = {row["kind"]: row["bytes"] for row in ledger["rows"]}
    assert sum(rows.values()) == ledger["process"]
    assert ledger["unattributed"] == 0 and not ledger["traced"]
    last = recorded.steps()[-1]["devices"][0]
    assert rows["allocated"] + rows["cached"] == last["reserved"]
    assert rows["non_pytorch"] > 0
    said = recorded.done.stdout
    assert "on the device, as nvidia-smi counts it" in said
    assert "--trace-driver" not in said, "an emulated GPU has no driver to trace"


def test_a_private_pool_names_its_owner(run) -> None:
    recorded = run(POOLS)
    assert recorded.done.returncode == 0, recorded.done.stderr
    owners = json.loads((recorded.folder / "rank0.ledger").read_text())["pools"]
    assert sorted((owner["kind"], owner["graphs"]) for owner in owners) == [("graph", 2), ("mem_pool", 0)]
    finding = next(of for of in recorded.report()["findings"] if of["kind"] == "private_pool")
    text = "\n".join(finding["details"])
    assert "a `MemPool`: 16.0 MiB, 0 B of it free, most of it from train.py:17" in text
    assert "2 CUDA graphs: " in text and "most of it from train.py:11" in text


def test_a_broken_ledger_is_named_and_left_out(run) -> None:
    recorded = run(f"{MODEL}\n    train(1)\n")
    (recorded.folder / "rank0.ledger").write_text('{"samples": [{"at": 1}')
    report = recorded.report()
    assert "ledger" not in report


@pytest.mark.parametrize("options", [["--emulate", "h200"], ["--cpu"]])
def test_a_trace_needs_a_driver(predict: Predict, options: list[str]) -> None:
    predict.write("print('ran')")
    done = predict.run("run", "--trace-driver", *options, "train.py")
    assert done.returncode == 2 and "cannot be used with" in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.nightly
def test_without_a_driver_the_program_runs_as_always(run) -> None:
    recorded = run(f"{MODEL.replace('cuda', 'cpu')}\n    train(2)\n    print('done')", "--trace-driver", gpu=False, fresh=True)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "done" in recorded.done.stdout
    assert "calls of the CUDA driver are not counted" in recorded.done.stderr
