"""`oomph fit`: the change that it proposes fits, is the smallest of its kind, and is what its diff says."""

import subprocess
import sys

import pytest

from conftest import FORKING_PYTHON, Predict
from schemas import parsed

pytestmark = [pytest.mark.long, pytest.mark.nightly]

BLOCKS = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(256) for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x = torch.randn(32768, 256, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
"""

LOADER = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.zeros(65536, 64))
loader = DataLoader(data, batch_size=16384)
model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    x = x.cuda()
    out = model(x)
    loss = (out - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LEAK = """\
import torch
kept = []
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    loss = model(torch.randn(8, 64, device="cuda")).sum()
    kept.append(torch.zeros(16 << 20, device="cuda", dtype=torch.uint8))
    loss.backward()
    optimizer.step()
"""


def fitted(predict: Predict, source: str, memory: str, *options: str, code: int = 0) -> dict:
    predict.write(source)
    arguments = ("--gpu", "h200", "--gpu-memory", memory, "--json", "--python", FORKING_PYTHON.emulated, *options, "train.py")
    done = predict.run("fit", *arguments)
    assert done.returncode == code, done.stderr
    return parsed("fit", done.stdout)


def patched(predict: Predict, diff: str) -> dict:
    """The prediction for the program after its change, on a GPU with enough memory."""
    done = subprocess.run(["patch", "-p0"], input=diff, cwd=predict.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    done = predict.run("predict", "--gpu", "h200", "--once", "--json", "--python", FORKING_PYTHON.emulated, "train.py")
    assert done.returncode == 0, done.stderr
    return parsed("predict", done.stdout)


def test_the_fewest_blocks_that_are_enough_are_checkpointed(predict):
    answer = fitted(predict, BLOCKS, "2400MiB", "--try", "checkpoint")
    assert answer["verdict"] == "fits_with_change"
    (proposal,) = answer["proposals"]
    (technique,) = proposal["techniques"]
    count = int(technique.removeprefix("checkpoint:0-")) + 1
    assert 1 < count < 8, technique
    assert proposal["applied"] == [f"{count} of 8 blocks of Block"]
    assert answer["total"] > answer["memory"] > answer["target"] >= proposal["total"]
    fewer = predict.answer(BLOCKS, "--once", "--gpu-memory", "2400MiB", "--try", f"checkpoint:0-{count - 2}")
    assert fewer["try"][0]["total"] > answer["target"], "one block less does not fit"
    assert f"for block in model.blocks[:{count}]:" in proposal["diff"]
    assert patched(predict, proposal["diff"])["peak_allocated"] == proposal["peak_allocated"]
    # Blocks compute nearly everything here.
    assert proposal["slowdown"] == pytest.approx(count / 8 / 3, rel=0.05)


def test_batches_are_divided_as_little_as_is_enough(predict):
    answer = fitted(predict, LOADER, "1150MiB", "--try", "accumulate")
    (proposal,) = answer["proposals"]
    assert proposal["techniques"] == ["accumulate:4"]
    assert proposal["results"] == "none"
    assert "batch_size=4096" in proposal["diff"] and "(loss / 4).backward()" in proposal["diff"]
    # The quotient is a tensor of its own.
    assert 0 <= patched(predict, proposal["diff"])["peak_allocated"] - proposal["peak_allocated"] <= 512


def test_techniques_are_combined_where_none_is_enough(predict):
    source = BLOCKS.replace('x = torch.randn(32768, 256, device="cuda")', "x = x.cuda()")
    source = source.replace("for _ in range(5):", "for (x,) in loader:").replace("def main():", "def main(loader):")
    loader = "from torch.utils.data import DataLoader, TensorDataset\n"
    loader += "main(DataLoader(TensorDataset(torch.randn(16, 8192, 256)), batch_size=4))\n"
    answer = fitted(predict, source.replace("\nmain()\n", f"\n{loader}"), "1100MiB", "--try", "checkpoint,accumulate")
    proposal = answer["proposals"][0]
    assert [name.split(":")[0] for name in proposal["techniques"]] == ["accumulate", "checkpoint"]
    assert {tried["technique"] for tried in answer["insufficient"]} == {"checkpoint", "accumulate"}
    peak = patched(predict, proposal["diff"])["peak_allocated"]
    assert 0 <= peak - proposal["peak_allocated"] <= 512


def test_a_program_that_fits_needs_no_change(predict):
    answer = fitted(predict, LOADER, "80GiB")
    assert (answer["verdict"], answer["proposals"], answer["runs"]) == ("fits", [], 0)


def test_what_grows_is_not_made_to_fit(predict):
    answer = fitted(predict, LEAK, "4GiB", code=1)
    assert (answer["verdict"], answer["proposals"]) == ("fills_up", [])


def test_nothing_is_enough(predict):
    predict.write(BLOCKS)
    options = ("--gpu", "h200", "--gpu-memory", "700MiB", "--python", FORKING_PYTHON.emulated, "--try", "amp")
    done = predict.run("fit", *options, "train.py")
    assert done.returncode == 1, done.stderr
    assert "DOES NOT FIT" in done.stdout and "not enough alone\n   amp  " in done.stdout


def test_variants_that_are_forked_take_the_same_memory(predict):
    """The interpreter is named `python`, so that oomph forks the variants from one that has imported torch."""
    predict.write(LOADER.replace("16384", "int(__import__('sys').argv[1].split('=')[1])"))
    peaks = []
    for python in (sys.executable, FORKING_PYTHON.emulated):
        options = ("--gpu", "h200", "--once", "--json", "--python", python, "--vary", "batch=4096,8192")
        done = predict.run("predict", *options, "train.py", "batch=2048")
        peaks.append([run["peak_allocated"] for run in parsed("predict", done.stdout)["vary"]["runs"]])
    assert peaks[0] == peaks[1] and peaks[0][0] < peaks[0][1]
