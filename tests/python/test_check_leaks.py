"""`check_leaks`, on the CPU and on an emulated GPU."""

import gc
import os
import subprocess
import sys

import pytest
import torch

from conftest import FORKING_PYTHON, ROOT
from oomph.leaks import LeakError, check_leaks
from oomph.recording.cpu_history import CpuHistory

KIB = 1024


def tensor(size: int = 4 * KIB) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_a_callable_that_keeps_nothing_is_flat():
    check = check_leaks(lambda: tensor().add(1), repeat=4)
    assert (check.verdict, check.bytes_per_call, check.lines, bool(check)) == ("flat", 0, (), False)
    assert str(check) == "flat: 4 calls leave nothing more on the CPU"
    check.raise_if_leaking()


def test_a_callable_that_keeps_tensors_grows_with_the_line_that_made_them():
    kept = []

    def step(size: int, *, extra: int) -> None:
        kept.append(tensor(size))
        kept.append(tensor(extra))
        tensor(100)

    check = check_leaks(step, 4 * KIB, extra=1 * KIB, repeat=6, warmup=1)
    assert bool(check) and check.verdict == "grows"
    assert (check.bytes_per_call, check.tensors_per_call) == (5 * KIB, 2)
    assert check.after_call == tuple(n * 5 * KIB for n in range(1, 7))
    assert len(kept) == 14
    [line] = check.lines
    assert (line.site.function, line.size, line.count) == ("tensor", 15 * KIB, 6)
    assert str(check).splitlines()[0] == "grows 5.00 KiB and 2 tensors a call on the CPU; of the last 3 calls these stay:"
    with pytest.raises(LeakError, match=r"tests/python/test_check_leaks.py:\d+ in tensor"):
        check.raise_if_leaking()


def test_a_graph_that_is_kept_is_a_leak_with_all_its_tensors():
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    losses = []
    batch = torch.randn(8, 16)
    leaking = check_leaks(lambda: losses.append(model(batch).mean()))
    assert leaking and leaking.bytes_per_call >= 8 * 64 * 4
    assert not check_leaks(lambda: model(batch).mean().backward())


def test_a_cache_that_fills_settles():
    cache: dict[int, torch.Tensor] = {}
    calls = []

    def step() -> None:
        calls.append(1)
        cache.setdefault(min(len(calls), 5), tensor())

    check = check_leaks(step, repeat=10, warmup=3)
    assert (check.verdict, check.kept, bool(check)) == ("settles", 8 * KIB, False)
    assert str(check).startswith("settles: 8.00 KiB stay on the CPU, and later calls add nothing:")


@pytest.mark.parametrize("first", [True, False], ids=["freed first", "freed last"])
def test_keeping_the_newest_result_is_flat(first):
    newest: list[torch.Tensor] = []

    def step() -> None:
        if first:
            newest.clear()
        newest[:] = [tensor()]

    assert check_leaks(step, repeat=4).verdict == "flat"
    kept = []

    def leaks_too() -> None:
        step()
        kept.append(torch.empty(KIB, dtype=torch.uint8))

    check = check_leaks(leaks_too, repeat=4)
    assert check.bytes_per_call == KIB
    assert [line.site.function for line in check.lines] == ["leaks_too"]


def test_memory_that_only_the_garbage_collector_frees_is_reported_separately():
    def step() -> None:
        cycle = [tensor()]
        cycle.append(cycle)

    gc.enable()  # other tests of this process may have left it off
    check = check_leaks(step, repeat=4)
    assert (check.verdict, check.garbage_per_call) == ("flat", 4 * KIB)
    assert "4.00 KiB a call are freed only by the garbage collector (reference cycles):" in str(check)
    assert gc.isenabled()


def test_a_recording_that_is_on_stays_on_and_sees_the_calls():
    history = CpuHistory(10_000)
    history.start()
    try:
        kept = []
        assert check_leaks(lambda: kept.append(tensor()), repeat=3, warmup=0)
        allocs = [event for event in history.snapshot()["device_traces"][0] if event["action"] == "alloc"]
        assert sum(event["size"] == 4 * KIB for event in allocs) == 3
        files = {frame["filename"] for event in allocs for frame in event["frames"]}
        assert not [file for file in files if "/python/oomph/" in file or file.endswith("torch/_ops.py")]
        kept.append(tensor())
        assert history.allocations()[0] == len(allocs) + 1
    finally:
        history.stop()


def test_an_error_of_the_callable_ends_the_check():
    gc.enable()
    calls = []

    def step() -> None:
        calls.append(1)
        if len(calls) == 5:
            raise KeyError("fifth")

    with pytest.raises(KeyError, match="fifth"):
        check_leaks(step)
    assert torch._C._len_torch_dispatch_stack() == 0 and gc.isenabled()
    with pytest.raises(ValueError, match="at least 2"):
        check_leaks(step, repeat=1)


def test_the_page_is_escaped_and_code_of_a_prompt_is_the_users():
    kept = []
    space: dict = {}
    exec(compile("def make(torch):\n return torch.ones(9)", "<stdin><b>&", "exec"), space)
    page = check_leaks(lambda: kept.append(space["make"](torch)), repeat=2)._repr_html_()
    assert "<td>&lt;stdin&gt;&lt;b&gt;&amp;:2 in make</td>" in page


@pytest.mark.nightly
def test_the_gpu_is_measured_if_the_callable_uses_it(predict):
    predict.write(
        """
        import torch
        from oomph.leaks import check_leaks

        kept, newest = [], {}

        def leaks():
            kept.append(torch.ones(1000, device="cuda") @ torch.ones(1000, 1000, device="cuda"))

        def fine():
            newest["result"] = torch.ones(1000, 1000, device="cuda").sum()

        def cycle():
            cycle = [torch.ones(1000, device="cuda")]
            cycle.append(cycle)

        for function in leaks, fine, cycle:
            print(check_leaks(function, repeat=4))
        print("recording:", torch._C._cuda_isHistoryEnabled())
        """
    )
    done = predict.run("run", "--emulate", "h100", "--python", FORKING_PYTHON.emulated, "train.py")
    said = done.stdout + done.stderr
    assert "grows 3.91 KiB and 1 tensor a call on the GPU; of the last 2 calls these stay:" in said, said
    assert "    7.81 KiB  2 blocks    train.py:8 in leaks" in said
    assert "flat: 4 calls leave nothing more on the GPU" in said
    assert "3.91 KiB a call are freed only by the garbage collector" in said
    assert "recording: True" in said


@pytest.mark.nightly
def test_the_example_of_the_documentation_prints_what_it_says(tmp_path):
    section = (ROOT / "docs/how-to/integrations.md").read_text().partition("## check_leaks")[2]
    program, said = (part.partition("\n")[2].strip() for part in section.split("```")[1:4:2])
    file = tmp_path / "example.py"
    file.write_text(program)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, file.name], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said
