"""The recorder in real programs with real torch: on an emulated GPU, and on the CPU."""

import collections
import json
import subprocess

from conftest import MODEL, OOMPH, SUMS


def test_categories_are_the_programs_own_sums(run):
    recorded = run(MODEL + "    train(5)\n" + SUMS)
    assert recorded.done.returncode == 0, recorded.done.stderr
    report = recorded.report()
    sums = recorded.said("SUMS")
    assert {name: report["categories"][name] for name in sums} == sums
    assert report["steps"] == {**report["steps"], "count": 5, "source": "recorded"}
    assert len(recorded.steps()) == 5


def test_labels_name_each_tensor(run):
    recorded = run(MODEL + "    train(3)\n")
    labels = json.loads((recorded.folder / "rank0.labels").read_text())
    names = collections.defaultdict(set)
    for category, name, model in labels["tensors"]:
        names[category].add((name, model))
    assert ("blocks.1.down.weight", "Net") in names["parameter"]
    assert names["gradient"] == names["parameter"]
    assert ("blocks.0.norm.bias.exp_avg_sq", "Net") in names["optimizer"]
    assert names["buffer"] == {("blocks.0.mask", "Net"), ("blocks.1.mask", "Net")}
    assert names["input"] == {("x", "Net")}


def test_every_block_of_a_pass_has_its_module_and_those_of_backward_a_line(run):
    recorded = run(MODEL + "    train(12)\n")
    report = recorded.report("--at", "peak", "--by", "module", "--top", "50")
    modules = {group.get("module") for group in report["live"]["groups"]}
    assert {"Net.blocks.0.up", "Net.blocks.1.down", "Net.head"} <= modules
    # Steps of a steady loop are not all followed through backward; the report knows their modules all the same.
    followed = {event["user_metadata"] for event in recorded.allocations() if event["user_metadata"].startswith("backward ")}
    assert len(followed) >= 8
    nameless = [event for event in recorded.allocations() if event["user_metadata"] == "backward"]
    assert nameless
    lines = recorded.report("--at", "peak", "--by", "site", "--top", "50")["live"]["groups"]
    in_backward = [group for group in lines if group.get("origin") == "backward"]
    assert in_backward and all(group["site"]["line"] for group in in_backward)


def test_the_recorder_does_not_change_what_the_program_asks_for(run, predict):
    program = (
        MODEL
        + """
    from torch.utils.checkpoint import checkpoint
    if len(sys.argv) > 1:
        torch.cuda.memory._set_memory_metadata("mine")
    model.blocks[0].register_forward_hook(lambda module, given, result: None)
    train(3)
    x = torch.randn(64, 128, device="cuda", requires_grad=True)
    checkpoint(model.blocks[1], x, use_reentrant=False).sum().backward()
"""
    )
    recorded = run(program)
    assert recorded.done.returncode == 0, recorded.done.stderr
    # A program that marks its own events is not followed through its modules.
    plain = run(program, arguments=("mine",))
    assert {event["user_metadata"] for event in plain.allocations()} <= {"", "mine"}
    assert [event["size"] for event in plain.allocations()] == [event["size"] for event in recorded.allocations()]


def test_an_allocation_that_fails_is_explained(run):
    recorded = run(MODEL + "    train(3)\n    train(1, batch=400_000)\n", "--gpu-memory", "2GiB")
    assert recorded.done.returncode == 1
    # The exception that the user sees is PyTorch's own, from the user's own line.
    assert "OutOfMemoryError: CUDA out of memory" in recorded.done.stderr
    assert "During handling" not in recorded.done.stderr
    run_json = recorded.json()
    assert (run_json["ended"], run_json["dumped"]) == ("failed", "oom")
    assert run_json["oom"]["requested"] > 100 << 20
    assert run_json["oom"]["total"] == 2 << 30
    finding = recorded.report()["findings"][0]
    assert (finding["kind"], finding["cause"]) == ("oom", "capacity")
    assert recorded.report()["ooms"] >= 1


def test_a_program_that_catches_a_failure_goes_on(run):
    program = (
        MODEL
        + """
    for batch in (400_000, 300_000, 64):
        try:
            train(1, batch=batch)
            print("fits", batch)
        except torch.OutOfMemoryError:
            print("too large", batch)
            optimizer.zero_grad()
"""
    )
    recorded = run(program, "--gpu-memory", "2GiB")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "fits 64" in recorded.done.stdout
    assert recorded.json()["ended"] == "finished"
    assert recorded.report()["ooms"] >= 2


def test_the_users_exception_and_exit_code_stay(run):
    recorded = run(MODEL + "    train(2)\n    raise KeyError('mine')\n")
    assert recorded.done.returncode == 1
    assert "KeyError: 'mine'" in recorded.done.stderr
    assert recorded.json()["exception"] == "KeyError: 'mine'"
    assert run(MODEL + "    train(2)\n    sys.exit(7)\n").done.returncode == 7


def test_a_recording_that_cannot_be_written_is_said_and_hurts_nobody(run):
    program = (
        MODEL
        + """
    import os, shutil
    train(2)
    shutil.rmtree("recording")
    open("recording", "w").close()
    train(2)
    print("the program ends well")
    raise ValueError("mine")
"""
    )
    recorded = run(program)
    assert recorded.done.returncode == 1
    assert "the program ends well" in recorded.done.stdout
    assert "ValueError: mine" in recorded.done.stderr
    assert "oomph: part of the recording is missing" in recorded.done.stderr


def test_an_alarm_is_raised_while_memory_grows(run):
    program = (
        MODEL
        + """
    import os, time
    kept = []
    path = os.path.join("recording", "rank0.json")
    for step in range(400):
        train(1)
        kept.append(torch.empty(1 << 20, device="cuda"))
        time.sleep(0.05)
        if os.path.exists(path) and '"alarm"' in open(path).read():
            print("written at step", step)
            break
"""
    )
    recorded = run(program)
    assert "memory has grown 4.00 MiB per step" in recorded.done.stderr
    assert "written at step" in recorded.done.stdout
    assert recorded.done.stderr.count("memory has grown") == 1
    assert recorded.report()["findings"][0]["kind"] == "leak"


def test_odd_tensors_and_modules_cost_their_labels_alone(run):
    program = (
        MODEL
        + """
    class Odd(nn.Module):
        def named_parameters(self, *args, **kwargs):
            raise RuntimeError("mine")

    kept = [nn.LazyLinear(3, device="cuda"), Odd(), nn.Linear(2, 2, device="meta")]
    kept[1].register_buffer("sparse", torch.eye(3).to_sparse_csr().cuda())
    train(3)
"""
        + SUMS
    )
    recorded = run(program)
    assert "is missing" not in recorded.done.stderr
    sums = recorded.said("SUMS")
    categories = recorded.report()["categories"]
    assert {name: categories[name] for name in ("parameter", "gradient", "optimizer")} == {
        name: sums[name] for name in ("parameter", "gradient", "optimizer")
    }


def test_modules_that_come_later_have_their_names(run):
    program = """
    import torch, torch.nn as nn

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(64, 32).cuda()
            width = self.backbone(torch.zeros(1, 64, device="cuda")).shape[1]
            self.head = nn.Linear(width, 8).cuda()

        def forward(self, x):
            return self.head(self.backbone(x))

    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 64, device="cuda")).sum().backward()
        optimizer.step()
"""
    recorded = run(program)
    labels = json.loads((recorded.folder / "rank0.labels").read_text())
    assert "Detector.head" in labels["modules"]
    assert ["gradient", "head.weight", "Detector"] in labels["tensors"]


def test_steps_go_on_with_the_next_optimizer(run):
    program = (
        MODEL
        + """
    train(4)
    del optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(3)
"""
    )
    assert len(run(program).steps()) == 7


def test_an_optimizer_for_each_task_loses_no_steps(run):
    program = (
        MODEL
        + """
    tasks = []
    for _ in range(4):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tasks.append(optimizer)
        train(5)
"""
    )
    assert len(run(program).steps()) == 20


def test_the_optimizers_of_one_loop_take_one_step_together(run):
    program = (
        MODEL
        + """
    critic = torch.nn.Linear(4, 4).cuda()
    second = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(6):
        train(1)
        for _ in range(3):
            critic(torch.randn(2, 4, device="cuda")).sum().backward()
            second.step()
"""
    )
    assert len(run(program).steps()) == 6


def test_the_history_is_bounded(run):
    recorded = run(MODEL + "    train(20)\n" + SUMS, "--max-events", "500")
    report = recorded.report()
    assert report["events"] == 500
    assert report["history"] == "truncated"
    # Marks are counted from the end, so what is left of the history has its steps and labels.
    assert 1 <= report["steps"]["count"] < 20
    assert report["categories"]["parameter"] == recorded.said("SUMS")["parameter"]


def test_a_leak_on_a_laptop(run):
    program = (
        MODEL.replace('"cuda"', '"cpu"')
        + """
    kept = []
    for _ in range(12):
        train(1)
        kept.append(torch.randn(64, 128) * 2)
"""
        + SUMS
    )
    recorded = run(program, "--cpu", gpu=False)
    assert recorded.done.returncode == 0, recorded.done.stderr
    report = recorded.report()
    assert report["kind"] == "cpu"
    finding = report["findings"][0]
    line = next(
        n for n, text in enumerate((recorded.folder.parent / "train.py").read_text().splitlines(), 1) if "kept.append" in text
    )
    assert (finding["kind"], finding["site"]["line"]) == ("leak", line)
    sums = recorded.said("SUMS")
    assert {name: report["categories"][name] for name in sums} == sums


def test_a_program_without_torch_is_left_alone(run):
    recorded = run("print('hello')\n", gpu=False)
    assert recorded.done.returncode == 0
    assert "hello" in recorded.done.stdout
    assert "warning: the program never used CUDA" in recorded.done.stderr


LEAK = (
    MODEL
    + """
    def main():
        kept = []
        for _ in range(20):
            train(1)
            kept.append(torch.empty(1 << 20, device=DEVICE))

    main()
"""
)


def names_of(graph: dict, source_text: str) -> set[str]:
    """The names under which what has this text refers to something."""
    places = {at for at, text in graph["texts"] if text.startswith(source_text)}
    edges = zip(*graph["edges"], strict=True)
    return {graph["names"][name][1] for source, _, name in edges if source in places}


def test_holders_are_written_while_memory_grows(run):
    recorded = run(LEAK)
    assert recorded.done.returncode == 0, recorded.done.stderr
    growing = recorded.heap("growing.heap")
    assert growing["dumped"] == "growing"
    assert "kept" in names_of(growing, "main (")
    assert growing["allocations"]["0"] in [step["devices"][0]["allocations"] for step in recorded.steps()]
    # The memory is that of the device, as the snapshot has it.
    kept = [row for row in growing["storages"] if row[1] == "cuda" and row[4] == 4 << 20]
    assert len(kept) >= 4
    assert {row[3] for row in kept} <= {event["addr"] for event in recorded.allocations()}
    # At the end the list is gone, and so are its tensors.
    at_end = recorded.heap()
    assert (at_end["dumped"], at_end["allocations"]) == ("exit", recorded.json()["allocations"])
    assert not [row for row in at_end["storages"] if row[1] == "cuda" and row[4] == 4 << 20]
    assert sum(row[4] for row in at_end["storages"] if row[1] == "cuda") > 1 << 20


def test_a_program_that_does_not_grow_is_neither_looked_at_nor_called(run):
    recorded = run(MODEL + "    train(40)\n", "--raise-on-leak", "--on-leak", "touch recording/called")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "memory has grown" not in recorded.done.stderr and not (recorded.folder / "called").exists()
    assert recorded.heap()["dumped"] == "exit"
    assert not (recorded.folder / "rank0.growing.heap").exists()


def test_holders_are_written_when_an_allocation_fails(run):
    program = (
        MODEL
        + """
    def main():
        kept = [torch.empty(1 << 20, device=DEVICE) for _ in range(3)]
        train(1, batch=400_000)

    train(3)
    main()
"""
    )
    recorded = run(program, "--gpu-memory", "2GiB")
    assert "OutOfMemoryError" in recorded.done.stderr
    assert "is missing" not in recorded.done.stderr
    graph = recorded.heap()
    assert graph["dumped"] == "oom"
    assert "kept" in names_of(graph, "main (")


def test_a_module_of_the_programs_own_that_has_our_name_is_not_imported(run, predict):
    predict.write("print('imported')", "oomph.py")
    recorded = run("import torch\nkept = [torch.ones(1000, device='cuda')]\ntorch.nn.Linear(2, 2)(torch.ones(2))\n")
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "imported" not in recorded.done.stdout + recorded.done.stderr
    assert "kept" in {text for _, text in recorded.heap()["names"]}


CHANGES_SETTINGS = """
    import torch
    import warnings

    warnings.simplefilter("ignore")
    def make(*sizes):
        return [torch.empty(size << 18, device="cuda") for size in sizes]

    kept = make(3, 30, 7)
    torch.cuda.memory._set_allocator_settings("expandable_segments:False,roundup_power2_divisions:4")
    kept += make(9, 30, 13)
    del kept[1:3]
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    kept += make(5, 41, 2)
    try:
        torch._C._accelerator_setAllocatorSettings("nonsense:1")
    except ValueError:
        print("refused")
"""


def test_settings_that_change_are_noted_with_their_place_in_the_history(run):
    recorded = run(CHANGES_SETTINGS, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert "refused" in recorded.done.stdout, recorded.done.stderr
    settings = recorded.json()["settings"]
    assert settings["initial"] == "expandable_segments:True"
    assert [(counts, conf) for _, counts, conf in settings["changes"]] == [
        ({"0": 3}, "expandable_segments:False,roundup_power2_divisions:4"),
        ({"0": 6}, "expandable_segments:True"),
        ({"0": 9}, "nonsense:1"),
    ]
    done = subprocess.run([OOMPH, "simulate", recorded.folder, "--verify", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    done = subprocess.run(
        [OOMPH, "simulate", recorded.folder, "--conf", "roundup_power2_divisions:8"], capture_output=True, text=True
    )
    assert "changes its allocator settings at events" in " ".join(done.stdout.split())


def test_settings_that_stay_are_not_noted(run):
    assert run(MODEL + "    train(2)\n").json()["settings"] is None
