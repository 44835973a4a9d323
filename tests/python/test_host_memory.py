"""Host memory of recorded programs: pinned memory by line, data loader workers, /dev/shm, limits."""

import json
import os
import textwrap

import pytest

from oomph.recording import proc_memory

SAMPLE = """
import sys
import torch

def sample():
    recorder = next(module for name, module in sys.modules.items() if name.endswith("recording.recorder"))
    recorder.active.host_memory.sample()
"""


def host_lines(recorded) -> list[dict]:
    return [json.loads(line) for line in (recorded.folder / "rank0.host.jsonl").read_text().splitlines()]


def findings(recorded) -> dict[str, dict]:
    assert recorded.done.returncode == 0, recorded.done.stderr
    return {finding["kind"]: finding for finding in recorded.report()["findings"]}


def line_of(recorded, mark: str) -> int:
    lines = (recorded.folder.parent / "train.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))


def test_pinned_memory_that_only_rounding_takes_is_found_with_its_line(run):
    recorded = run("""
        import torch

        kept = [torch.empty(33 << 20, dtype=torch.uint8).pin_memory() for _ in range(6)]  # here
        made = torch.empty(70 << 20, dtype=torch.uint8, pin_memory=True)
        torch.empty(1, device="cuda")
    """)
    finding = findings(recorded)["pinned_waste"]
    assert finding["site"]["line"] == line_of(recorded, "# here")
    assert finding["bytes"] == (6 * 31 + 58) << 20
    assert finding["evidence"]["reserved"] == (6 * 64 + 128) << 20
    [first, second] = finding["evidence"]["blocks"]
    assert (first["count"], first["size"], first["requested"]) == (6, 64 << 20, 33 << 20)
    # PyTorch records the lines of other requests since 2.14.
    assert (second["size"], second["requested"]) == (128 << 20, 70 << 20)


def test_pinned_memory_of_a_power_of_two_is_not_reported(run):
    recorded = run("""
        import torch

        kept = [torch.empty(size << 20, dtype=torch.uint8).pin_memory() for size in (64, 128, 63)]
        again = torch.empty(33 << 20, dtype=torch.uint8).pin_memory()
        del again
        reused = [torch.empty(64 << 20, dtype=torch.uint8).pin_memory() for _ in range(2)]
        torch.empty(1, device="cuda")
    """)
    assert "pinned_waste" not in findings(recorded)


def test_batches_that_a_loader_pins_belong_to_its_line(run):
    recorded = run("""
        import torch
        from torch.utils.data import DataLoader

        torch.empty(1, device="cuda")
        sizes = [torch.zeros(33 << 20, dtype=torch.uint8)] * 4
        loader = DataLoader(sizes, batch_size=None, num_workers=1, pin_memory=True)  # here
        kept = list(loader)
    """)
    finding = findings(recorded)["pinned_waste"]
    assert finding["site"]["line"] == line_of(recorded, "# here")
    assert finding["evidence"]["blocks"][0]["count"] == 4


def test_a_tensor_that_cannot_be_pinned_fails_as_without_the_recorder(run):
    recorded = run("""
        import torch
        import json
        import traceback

        try:
            torch.empty(1, device="cuda").pin_memory()
        except RuntimeError as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        print("SEEN", json.dumps({"frames": frames, "method": repr(torch.Tensor.pin_memory)}))
    """)
    assert recorded.said("SEEN") == {"frames": ["<module>"], "method": "<method 'pin_memory' of 'torch._C.TensorBase' objects>"}


LOADER = """
from torch.utils.data import DataLoader, Dataset
import numpy

class Texts(Dataset):
    def __init__(self, count):
        self.texts = [str(number) for number in range(count)] if KIND == "list" else numpy.arange(10 * count)

    def __len__(self):
        return 20

    def __getitem__(self, index):
        part = len(self.texts) // 20
        return torch.tensor(float(sum(map(len, map(str, self.texts[index * part : (index + 1) * part : 1 if KIND == "list" else 50])))))

torch.empty(1, device="cuda")
loader = DataLoader(Texts(2_400_000), num_workers=1, multiprocessing_context="fork")  # here
batches = iter(loader)
sample()
for _ in range(18):
    next(batches)
    sample()
"""


@pytest.mark.skipif(proc_memory.private(os.getpid()) is None, reason="this kernel does not count private memory")
@pytest.mark.parametrize("kind", ["list", "array"])
def test_a_worker_that_copies_a_list_of_objects_is_found_and_one_that_reads_an_array_is_not(run, kind):
    recorded = run(textwrap.indent(SAMPLE + f"KIND = {kind!r}\n" + LOADER, " " * 8))
    found = findings(recorded)
    private = [worker["private"] for line in host_lines(recorded) for worker in line.get("workers", [])]
    assert len(private) >= 19
    if kind == "array":
        assert "worker_growth" not in found, private
        return
    finding = found["worker_growth"]
    assert finding["site"]["line"] == line_of(recorded, "# here")
    assert "copied pages" in finding["details"][0]
    assert finding["evidence"]["copied"] > finding["bytes"] / 2
    assert finding["evidence"]["copied"] <= finding["bytes"] <= private[-1] - private[0]


@pytest.mark.skipif(proc_memory.private(os.getpid()) is None, reason="this kernel does not count private memory")
def test_memory_that_only_the_parent_copies_is_not_a_worker_s(run):
    writes = "loader.dataset.texts[step << 20 : step + 1 << 20] = 0"
    loader = LOADER.replace("for _ in range(18):", f"for step in range(18):\n    {writes}")
    recorded = run(textwrap.indent(SAMPLE + "KIND = 'array'\n" + loader, " " * 8))
    private = [worker["private"] for line in host_lines(recorded) for worker in line.get("workers", [])]
    assert private[-1] - private[0] > 128 << 20
    assert "worker_growth" not in findings(recorded)


@pytest.mark.nightly
def test_workers_are_sampled_however_they_are_started(run):
    recorded = run(
        textwrap.indent(SAMPLE, " " * 8)
        + """
        from torch.utils.data import DataLoader

        if __name__ == "__main__":
            torch.empty(1, device="cuda")
            for context in ("fork", "spawn", "forkserver"):
                loader = DataLoader(range(4), num_workers=2, multiprocessing_context=context)  # here
                batches = iter(loader)
                next(batches)
                sample()
        """,
        fresh=True,
    )
    assert recorded.done.returncode == 0, recorded.done.stderr
    lines = host_lines(recorded)
    assert [line["line"] for line in lines if "file" in line] == [line_of(recorded, "# here")]
    counts = [len(line["workers"]) for line in lines if "workers" in line]
    # The workers of a loop are gone when the next one begins.
    assert [count for count in counts if count >= 2][:3] == [2, 2, 2]
    workers = [worker for line in lines for worker in line.get("workers", [])]
    assert len({worker["pid"] for worker in workers}) == 6
    assert all(worker["loader"] == 0 and worker["rss"] > 0 for worker in workers)


def test_a_run_says_what_the_process_needs_on_the_host(run):
    recorded = run("""
        import torch
        torch.empty(1, device="cuda")
    """)
    samples = [line for line in host_lines(recorded) if "rss" in line]
    assert samples[-1]["rss"] > 10 << 20
    assert samples[-1]["machine"]["total"] > samples[-1]["machine"]["available"] > 0
    assert "host memory" in recorded.done.stdout


def test_the_tightest_control_group_counts_without_the_page_cache(tmp_path):
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    proc, mount = str(tmp_path / "proc"), str(tmp_path / "cgroup")
    assert proc_memory.control_group(proc, mount) is None
    write("proc/self/cgroup", "0::/pod/job\n")
    write("cgroup/pod/memory.max", "1000\n")
    write("cgroup/pod/memory.current", "900\n")
    write("cgroup/pod/memory.stat", "anon 300\ninactive_file 400\nactive_file 100\n")
    write("cgroup/pod/job/memory.max", "max\n")
    write("cgroup/pod/job/memory.current", "900\n")
    assert proc_memory.control_group(proc, mount) == {"limit": 1000, "used": 400}
    write("proc/self/cgroup", "4:cpu,memory:/job\n0::/\n")
    write("cgroup/memory/job/memory.limit_in_bytes", "500\n")
    write("cgroup/memory/job/memory.usage_in_bytes", "450\n")
    write("cgroup/memory/job/memory.stat", "inactive_file 9\ntotal_inactive_file 40\ntotal_active_file 10\n")
    write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write("cgroup/memory/memory.usage_in_bytes", "450\n")
    assert proc_memory.control_group(proc, mount) == {"limit": 500, "used": 400}


def test_processes_are_read_from_the_kernels_files(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    assert proc_memory.process(7, str(tmp_path)) is None
    (folder / "status").write_text("Name:\tpython\nVmRSS:\t     10 kB\nRssShmem:\t       2 kB\nThreads:\t5\n")
    assert proc_memory.process(7, str(tmp_path)) == {"rss": 10 << 10, "shmem": 2 << 10}
    assert proc_memory.private(7, str(tmp_path)) is None
    (folder / "smaps_rollup").write_text("55-7f ---p 0 00:00 0 [rollup]\nPrivate_Clean:  1 kB\nPrivate_Dirty:  3 kB\n")
    assert proc_memory.private(7, str(tmp_path)) == 4 << 10
