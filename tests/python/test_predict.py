"""`oomph predict`, `run --emulate` and `check --emulate`: real programs, the real torch, no GPU."""

import json
import lzma
import pathlib
import pickle
import re
import subprocess
import sys
import time

import pytest

from conftest import FIXTURES, FORKING_PYTHON, OOMPH, Predict

LOOP = """
    import torch
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(40):
        model(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def requests(snapshot: dict) -> list[tuple[str, int]]:
    wanted = ("alloc", "free_requested")
    return [(event["action"], event["size"]) for event in snapshot["device_traces"][0] if event["action"] in wanted]


@pytest.mark.parametrize(
    "name",
    ["leak_retain_graph", "leak_cycle", "leak_exception", "no_zero_grad", "side_stream", "cuda_graph", "leak_running_total"],
)
def test_requests_are_those_of_a_real_h200(predict: Predict, name: str) -> None:
    program = FIXTURES / "programs" / f"{name}.py"
    output = predict.folder / "out"
    output.mkdir()
    env = {"ZOO_OUT": str(output)}
    python = FORKING_PYTHON.emulated
    options = ["--gpu", "h200", "--steps", "all", "--once", "--quiet", "--json", "--python", python, "-o", str(output)]
    done = predict.run("predict", *options, str(program), env=env)
    assert done.returncode == 0, done.stderr
    real = pickle.load(lzma.open(FIXTURES / "zoo" / f"{name}.pickle.xz"))
    truth = json.loads((FIXTURES / "zoo" / f"{name}.truth.json").read_text())
    assert requests(pickle.load(open(output / "rank0.pickle", "rb"))) == requests(real)
    answer = json.loads(done.stdout)
    assert answer["peak_allocated"] == max(row["peak_allocated"] for row in truth["rows"])


GROWING = """
    import torch
    layer, kept = torch.nn.Linear(1024, 1024).cuda(), []
    for step in range(400):
        layer(torch.randn(64, 1024, device="cuda")).sum().backward()
        layer.zero_grad()
        kept.append(torch.empty(96 << 20, dtype=torch.uint8, device="cuda"))
"""


def test_a_program_whose_memory_grows_is_full_at_the_step_at_which_it_fails(predict: Predict) -> None:
    options = ("--gpu-memory", "8GiB")
    answer = predict.answer(GROWING, *options)
    assert (answer["fits"], answer["verdict"]) == (False, "fills_up")
    failing = predict.answer(GROWING, *options, "--steps", "all")
    assert failing["verdict"] == "does_not_fit" and "full_at_step" not in failing
    assert answer["full_at_step"] == failing["steps"]["count"] + 1
    # What was in use when it failed is in the report of that run.
    kinds = [finding["kind"] for finding in failing["failing"]["inputs"][0]["devices"][0]["findings"]]
    assert kinds[0] == "oom"
    # As many steps as asked for are all that is judged.
    assert predict.answer(GROWING, *options, "--steps", "20")["verdict"] == "fits"


def test_next_to_nothing_to_spare_is_tight(predict: Predict) -> None:
    needed = predict.answer(LOOP)["total"]
    assert predict.answer(LOOP, "--gpu-memory", f"{needed * 102 // 100}B")["verdict"] == "tight"
    assert predict.answer(LOOP, "--gpu-memory", f"{needed * 105 // 100}B")["verdict"] == "fits"


def test_a_program_that_fits(predict: Predict) -> None:
    answer = predict.answer(LOOP)
    parameters = 4 * (512 * 512 + 512) * 4
    categories = answer["report"]["inputs"][0]["devices"][0]["categories"]
    assert answer["fits"] and answer["headroom"] == answer["gpu"]["memory"] - answer["total"]
    assert answer["total"] == answer["peak_reserved"] + answer["context"]
    assert categories["parameter"] == parameters
    # It would take 40 steps; after 20 they are all alike.
    assert answer["steps"] == {"count": 20, "ended": "periodic"}
    assert answer["confidence"] == "estimate" and "where its steps repeat" in answer["reasons"][0]


def test_only_a_program_that_ran_to_its_end_is_exact(predict: Predict) -> None:
    answer = predict.answer(LOOP, "--steps", "all")
    assert answer["steps"] == {"count": 40, "ended": "finished"}
    assert answer["confidence"] == "exact" and answer["reasons"] == []
    for peak in ("peak_allocated", "peak_reserved"):
        assert answer[f"{peak}_range"] == [answer[peak], answer[peak]]


def test_an_out_of_memory_error_that_a_library_raises_another_from(predict: Predict) -> None:
    found = predict.answer(
        """
        import torch
        try:
            torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("stage 3 failed") from error
        """,
        "--once",
    )
    assert found["verdict"] == "does_not_fit" and found["exception"].startswith("OutOfMemoryError")


def test_a_program_that_does_not_fit_says_what_it_needs(predict: Predict) -> None:
    program = LOOP.replace("64, 512", "2_000_000, 512")
    small = predict.answer(program, "--steps", "2", gpu="t4")
    large = predict.answer(program, "--steps", "2", "--once", "--gpu-memory", "200GiB", gpu="t4")
    assert not small["fits"] and small["exception"].startswith("OutOfMemoryError")
    assert large["fits"]
    assert small["peak_allocated"] == large["peak_allocated"] > small["gpu"]["memory"]
    assert small["headroom"] < 0


def test_memory_of_the_card_can_be_given(predict: Predict) -> None:
    answer = predict.answer(
        "import torch; print(torch.cuda.mem_get_info())\nx = torch.zeros(1, device='cuda')", "--gpu-memory", "3GiB", gpu="l4"
    )
    assert answer["gpu"]["memory"] == 3 << 30


def test_properties_are_the_cards(predict: Predict) -> None:
    program = """
        import torch
        x = torch.zeros(1, device="cuda")
        properties = torch.cuda.get_device_properties(1)
        assert torch.cuda.get_device_capability() == (7, 5)
        assert (properties.name, properties.multi_processor_count) == ("Tesla T4", 40)
        assert torch.cuda.device_count() == 2
        free, total = torch.cuda.mem_get_info()
        assert total == properties.total_memory and 0 < total - free < 1 << 30
    """
    assert predict.answer(program, "--gpus", "2", gpu="t4")["gpu"]["count"] == 2


def test_two_devices_have_memory_of_their_own(predict: Predict) -> None:
    program = """
        import torch
        a = torch.zeros(1 << 20, device="cuda:0")
        b = torch.zeros(3 << 20, device="cuda:1")
        c = b.to("cuda:0")
    """
    devices = predict.answer(program, "--gpus", "2")["devices"]
    assert [device["peak_allocated"] for device in devices] == [16 << 20, 12 << 20]


def test_values_from_the_host_survive(predict: Predict) -> None:
    program = """
        import torch
        x = torch.tensor([3.5, 2.0]).cuda()
        assert x.tolist() == [3.5, 2.0] and x[0].item() == 3.5
        index = torch.arange(100, device="cuda")
        mask = (index % 7 == 0) & (index > 10)
        assert mask.nonzero().flatten().tolist() == [v for v in range(11, 100) if v % 7 == 0]
        assert index[mask].shape == (13,)
        assert int(mask.sum()) == 13 and bool(mask.any()) and not mask.all()
    """
    answer = predict.answer(program)
    assert answer["confidence"] == "exact", answer["reasons"]


def test_a_read_that_decides_about_memory_makes_an_estimate(predict: Predict) -> None:
    program = """
        import torch
        x = torch.randn(1 << 20, device="cuda")
        if x.square().mean().item() > 0.5:
            y = torch.zeros(1 << 22, device="cuda")
    """
    answer = predict.answer(program)
    assert answer["confidence"] == "estimate"
    assert any("train.py:4" in reason for reason in answer["reasons"])


def test_a_read_that_is_only_printed_does_not(predict: Predict) -> None:
    answer = predict.answer(LOOP + "        print(step, float(model[0].weight.sum()))\n", "--steps", "all")
    assert answer["confidence"] == "exact", answer["reasons"]
    assert any("train.py" in remark for remark in answer["remarks"])


def test_a_leak_is_found_without_a_gpu(predict: Predict) -> None:
    program = """
        import torch
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
        kept = []
        for step in range(30):
            kept.append(model(torch.randn(512, 256, device="cuda")))
    """
    answer = predict.answer(program)
    (finding,) = [f for f in answer["report"]["inputs"][0]["devices"][0]["findings"] if f["kind"] == "leak"]
    assert finding["site"]["line"] == 6
    # The input of each layer, and the result.
    assert finding["bytes_per_step"] == 5 * 512 * 256 * 4
    assert finding["holder"]["path"] == "__main__.kept"


def test_arguments_modules_and_environment(predict: Predict) -> None:
    predict.write("import sys, torch; assert sys.argv[1:] == ['--steps', '3', 'x']; torch.zeros(9, device='cuda')")
    for program in (["train.py"], ["-m", "train"]):
        done = predict.run("predict", "--python", FORKING_PYTHON.emulated, "--gpu", "l4", *program, "--steps", "3", "x")
        assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_vary_finds_the_largest_batch(predict: Predict) -> None:
    program = """
        import argparse, torch
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch-size", type=int, default=1)
        batch = parser.parse_args().batch_size
        for step in range(2):
            x = torch.zeros(batch, 1 << 27, device="cuda", dtype=torch.uint8)
            del x
    """
    listed = predict.answer(program, "--vary", "batch_size=1,2,400", gpu="l4")["vary"]
    assert [run["fits"] for run in listed["runs"]] == [True, True, False]
    assert listed["largest"] == 2
    found = predict.answer(program, "--vary", "batch-size=1..400", gpu="l4")["vary"]["largest"]
    # 22,488 MiB less the context, in pieces of 128 MiB.
    assert 165 <= found <= 172


def test_checkpoints_are_left_alone(predict: Predict) -> None:
    (predict.folder / "model.pt").write_bytes(b"precious")
    answer = predict.answer(LOOP + '    torch.save(model.state_dict(), "model.pt")\n', "--steps", "all", "--once")
    assert answer["fits"] and (predict.folder / "model.pt").read_bytes() == b"precious"


def test_an_uncovered_function_fails_with_its_name(predict: Predict) -> None:
    predict.write("""
        import torch
        x = torch.eye(9, device="cuda").to_sparse_csr()
        x @ x
    """)
    done = predict.run("predict", "--gpu", "l4", "--python", FORKING_PYTHON.emulated, "train.py")
    assert done.returncode == 2
    assert "cusparseSpGEMM_createDescr" in done.stderr


def test_a_failing_program_and_one_without_cuda_are_told_apart(predict: Predict) -> None:
    for program, words in [
        ("raise ValueError('mine')", "failed before it used CUDA"),
        ("import torch; torch.zeros(3)", "never used CUDA"),
        ("import torch; torch.zeros(3, device='cuda'); raise ValueError('mine')", "ValueError: mine"),
    ]:
        predict.write(program)
        done = predict.run("predict", "--gpu", "l4", "--python", FORKING_PYTHON.emulated, "train.py")
        assert done.returncode == 2 and words in done.stderr, done.stderr


FEATURES = {
    "autocast and GradScaler": """
        import torch
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
        model(torch.randn(2, 3, 32, 32, device="cuda"))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda")
        for step in range(4):
            with torch.autocast("cuda", torch.float16):
                loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 3, 32, 32, device="cuda")), torch.randint(0, 10, (8,), device="cuda"))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert optimizer.state
    """,
    "a data loader with workers and pinned memory": """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.randn(256, 64), torch.arange(256)), 32, num_workers=2, pin_memory=True)
        for epoch in range(2):
            for x, y in loader:
                assert x.is_pinned()
                x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
                assert y[0].item() % 32 == 0
    """,
    "a CUDA graph": """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        x = torch.zeros(8, 64, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
    """,
    "torch.compile with aot_eager": """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).cuda()
        compiled = torch.compile(model, backend="aot_eager")
        for step in range(3):
            compiled(torch.randn(8, 64, device="cuda")).sum().backward()
    """,
    "torch.compile with Inductor": """
        import torch
        from torch._inductor.async_compile import AsyncCompile
        AsyncCompile.wait_pool_ready()  # compiles in worker processes from now on, if it has any
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).cuda()
        compiled = torch.compile(model)
        for step in range(3):
            compiled(torch.randn(8, 64, device="cuda")).sum().backward()
    """,
    "recurrent nets, attention, Fourier transforms, linear algebra": """
        import torch
        lstm = torch.nn.LSTM(64, 128, 2, batch_first=True, bidirectional=True).cuda()
        lstm(torch.randn(4, 10, 64, device="cuda"))[0].sum().backward()
        layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda()
        mask = torch.zeros(2, 16, dtype=torch.bool, device="cuda")
        layer(torch.randn(2, 16, 64, device="cuda"), src_key_padding_mask=mask).sum().backward()
        torch.fft.irfft2(torch.fft.rfft2(torch.randn(4, 32, 32, device="cuda")))
        a = torch.randn(8, 8, device="cuda")
        torch.linalg.solve(a, a), torch.linalg.svd(a), torch.linalg.qr(a), torch.linalg.eigh(a), torch.linalg.cholesky_ex(a)
    """,
    "expandable segments": """
        import os
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        import torch
        kept = [torch.zeros(5 << 20, device="cuda") for _ in range(4)]
        assert torch.cuda.memory_reserved() == 80 << 20
    """,
    "expandable segments that are given back, more often than there is address space": """
        import os
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        import torch
        for _ in range(700):
            block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            del block
            torch.cuda.empty_cache()
    """,
    "torch.compile with sizes that change": """
        import torch
        layer = torch.nn.Linear(64, 64).cuda()
        @torch.compile(backend="aot_eager")
        def loss(x):
            return layer(x).sum() / x.shape[0] + x.shape[0] * layer(x).mean()
        for size in (32, 32, 17, 5):
            loss(torch.randn(size, 64, device="cuda")).backward()
    """,
    "operators of a higher order": """
        import torch
        from torch.nn.attention.flex_attention import flex_attention
        x = torch.ones(4, device="cuda")
        assert torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)).shape == (4,)
        query = torch.randn(1, 2, 128, 64, device="cuda")
        assert flex_attention(query, query, query).shape == query.shape
    """,
}


@pytest.mark.parametrize("feature", FEATURES)
def test_feature(predict: Predict, feature: str) -> None:
    answer = predict.answer(FEATURES[feature], "--once")
    assert answer["fits"] and answer["steps"]["ended"] == "finished", answer
    assert not any("not covered" in reason for reason in answer["reasons"]), answer["reasons"]


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
@pytest.mark.nightly
def test_two_ranks_on_one_machine(predict: Predict, wrapper: str) -> None:
    predict.write(f"""
        import os, torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
        if {wrapper == "ddp"}:
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.fsdp import fully_shard
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(4):
            model(torch.randn(16, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found = [None] * 2
        dist.all_gather_object(found, {{"rank": rank}})
        assert found == [{{"rank": 0}}, {{"rank": 1}}], found
        dist.destroy_process_group()
    """)
    options = ["--gpu", "h100", "--gpus", "2", "--once", "--json", "--steps", "all", "--python", FORKING_PYTHON.emulated]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = predict.run("predict", *options, *launcher)
    assert done.returncode == 0, done.stderr
    used = [device for device in json.loads(done.stdout)["devices"] if device["requests"]]
    assert [device["rank"] for device in used] == [0, 1]
    parameters = 4 * (1024 * 1024 + 1024) * 4
    least = 4 * parameters if wrapper == "ddp" else 2 * parameters
    for device in used:
        assert least <= device["peak_allocated"] < least + 3 * parameters + (80 << 20)


@pytest.mark.nightly
def test_the_gate_gives_the_same_bytes_every_time(predict: Predict) -> None:
    predict.write(LOOP)
    said = set()
    for _ in range(2):
        done = predict.run(
            "check", "--emulate", "h100", "--max-peak", "60GiB", "--no-leaks", "--json", "--", sys.executable, "train.py"
        )
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    assert len(said) == 1
    done = predict.run("check", "--emulate", "h100", "--max-peak", "1MiB", "--", FORKING_PYTHON.emulated, "train.py")
    assert done.returncode == 1 and "over the limit of 1.00 MiB" in done.stdout


def test_run_keeps_a_recording_that_report_reads(predict: Predict) -> None:
    predict.write(LOOP)
    done = predict.run("run", "--emulate", "l4", "-o", "rec", "--python", FORKING_PYTHON.emulated, "train.py")
    assert done.returncode == 0, done.stderr
    report = predict.run("report", "rec", "--json")
    steps = json.loads(report.stdout)["inputs"][0]["devices"][0]["steps"]
    assert (steps["count"], steps["source"]) == (40, "recorded")


def test_nothing_is_left_behind(predict: Predict) -> None:
    predict.write("""
        import os, time, torch
        from torch.utils.data import DataLoader
        torch.zeros(9, device="cuda")
        print("pid", os.getpid(), flush=True)
        loader = DataLoader(range(1000), num_workers=2, collate_fn=lambda batch: time.sleep(0.1))
        for _ in loader:
            pass
    """)
    command = [OOMPH, "predict", "--gpu", "l4", "--python", sys.executable, "train.py"]
    job = subprocess.Popen(command, cwd=predict.folder, stderr=subprocess.PIPE, text=True)
    for line in job.stderr:
        if found := re.match(r"pid (\d+)", line):
            break
    time.sleep(1.5)
    family = subprocess.run(["ps", "-o", "pid=", "--ppid", found[1]], capture_output=True, text=True).stdout.split()
    assert len(family) >= 2
    job.kill()
    deadline = time.monotonic() + 20
    alive = lambda pid: pathlib.Path(f"/proc/{pid}").exists() and "zombie" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    while any(alive(pid) for pid in [found[1], *family]):
        assert time.monotonic() < deadline, "processes of the run are still there"
        time.sleep(0.2)


def test_a_program_that_records_its_own_history_may_checkpoint(predict):
    """PyTorch then reads stacks at frees; checkpointing ends its recomputation with an exception."""
    answer = predict.answer(
        """
        import torch
        from torch.utils.checkpoint import checkpoint
        torch.cuda.memory._record_memory_history(max_entries=10000)
        block = lambda: torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.Dropout(0.1))
        model = torch.nn.ModuleList(block() for _ in range(3)).cuda()
        for _ in range(3):
            x = torch.randn(8, 64, device="cuda")
            for part in model:
                x = x + checkpoint(part, x, use_reentrant=False)
            x.sum().backward()
        """,
        "--once",
    )
    assert answer["fits"]


def test_a_peak_before_the_first_event_that_is_kept_is_pytorchs_own_counter(predict):
    program = """
        import torch
        weight = torch.zeros(256, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for step in range(4):
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
            weight.sum().backward()
            optimizer.step()
        small = torch.ones(10, device="cuda")
        for step in range(4):
            for _ in range(90_000):
                small = small + 1
            optimizer.step()
    """
    answer = predict.answer(program, "--steps", "all", "--once")
    assert answer["peak_allocated"] > 1 << 30
    assert any("own counter" in remark for remark in answer["remarks"]), answer["remarks"]
