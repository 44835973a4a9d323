"""`%load_ext oomph`: notebooks executed by nbclient with a real kernel, on an emulated GPU and on the CPU; and IPython without one."""

import json
import re
import subprocess
import sys
import textwrap

import nbformat
import pytest
from nbclient import NotebookClient

from conftest import FORKING_PYTHON, OOMPH

NOTEBOOK = """
import json, sys, torch
DEVICE = sys.argv[-1] if sys.argv[-1] == "cpu" else "cuda"
# A kernel is started without a recorder; this one is in `oomph run`, for the emulated GPU.
recorders = [sys.modules[name] for name in list(sys.modules) if name.endswith(".recording.recorder")]
[recorder.active.stop("finished") for recorder in recorders if recorder.active is not None]

%load_ext oomph
---
def counted():
    if DEVICE == "cuda":
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    # Each storage once, as the heap has them.
    from oomph.heap.walk import walk
    return sum(size for _, device, _, _, size in walk()["storages"] if device == "cpu"), 0

def step(batch):
    hidden = batch.repeat(3, 1)
    raise ValueError("bad batch")

kept = torch.ones(1 << 18, device=DEVICE)
---
step(torch.ones(256, 1024, device=DEVICE))
---
kept * 2
---
shown = %oomph who
print(json.dumps({"rows": {row.keeper.name: row.bytes for row in shown.rows}, "cells": {row.keeper.name: row.cell for row in shown.rows},
                  "what": {row.keeper.name: row.what for row in shown.rows}, "unheld": shown.unheld, "allocated": counted()[0]}))
shown
---
before = counted()
freed = %oomph free
after = counted()
print(json.dumps({"steps": {step.name: step.allocated for step in freed.steps}, "reserved": freed.reserved,
                  "before": before, "after": after, "out": sorted(Out), "namespace": sorted(set(globals()) & {"kept", "_4", "step"})}))
freed
---
%%oomph
for i in range(8):
    value = kept * i
step(torch.ones(256, 1024, device=DEVICE))
---
before = counted()
freed = %oomph free
print(json.dumps({"freed": freed.allocated, "change": before[0] - counted()[0]}))
---
%oomph run step(torch.ones(256, 1024, device=DEVICE))
---
before = counted()
freed = %oomph free
print(json.dumps({"freed": freed.allocated, "change": before[0] - counted()[0]}))
"""
BATCH = 1 << 20
HIDDEN = 3 << 20
KEPT = 1 << 20


@pytest.fixture(scope="module", params=["cuda", "cpu"])
def cells(request, tmp_path_factory):
    """The cells of the notebook with their outputs, after a real kernel has run it."""
    folder = tmp_path_factory.mktemp("notebook")
    launcher = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    card = ["--emulate", "h200", "--python", FORKING_PYTHON.emulated, "-o", str(folder / "recording")]
    argv = [str(OOMPH), "run", *card, *launcher] if request.param == "cuda" else [FORKING_PYTHON.cpu, *launcher, "cpu"]
    spec = folder / "kernels/tested/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": argv, "display_name": "tested", "language": "python"}))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in NOTEBOOK.split("---\n")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        NotebookClient(notebook, kernel_name="tested", timeout=300, allow_errors=True, resources={"metadata": {"path": str(folder)}}).execute()
    return [Cell(cell.outputs) for cell in notebook.cells]


class Cell:
    """What a cell shows."""

    def __init__(self, outputs: list) -> None:
        self.outputs = outputs

    @property
    def printed(self) -> dict:
        return json.loads(next(output.text for output in self.outputs if output.get("name") == "stdout"))

    @property
    def error(self) -> str:
        found = next(output for output in self.outputs if output.output_type == "error")
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(found.traceback))

    def shown(self, kind: str) -> str:
        return next(output.data[kind] for output in self.outputs if "data" in output)


def test_who_names_what_an_exception_and_an_output_hold(cells):
    answer = cells[4].printed
    assert (answer["rows"]["last error"], answer["rows"]["Out[4]"], answer["rows"]["kept"]) == (BATCH + HIDDEN, KEPT, KEPT)
    assert answer["what"]["last error"] == "ValueError in step(): hidden 3.00 MiB, batch 1.00 MiB"
    assert answer["cells"]["kept"] == "In [2]"
    assert sum(answer["rows"].values()) + answer["unheld"] == answer["allocated"]
    assert "last error" in cells[4].shown("text/plain").splitlines()[2]
    assert f'title="{BATCH + HIDDEN:,} bytes"' in cells[4].shown("text/html")


def test_free_frees_to_the_byte_what_it_says(cells):
    answer = cells[5].printed
    assert answer["steps"]["last error"] == BATCH + HIDDEN
    assert answer["steps"]["Out[4]"] == KEPT
    assert sum(answer["steps"].values()) == answer["before"][0] - answer["after"][0]
    assert answer["reserved"] == answer["before"][1] - answer["after"][1]
    assert 4 not in answer["out"]
    assert answer["namespace"] == ["kept", "step"]
    text = cells[5].shown("text/plain")
    assert "freed 5.00 MiB of tensors" in text
    assert "1.00 MiB  del kept" in text
    said = [int(size.replace(",", "")) for size in re.findall(r'title="([\d,]+) bytes"', cells[5].shown("text/html"))]
    assert said[:2] == [BATCH + HIDDEN, KEPT]


def test_a_recorded_cell_shows_its_error_and_its_report(cells):
    error = cells[6].error
    assert error.endswith("ValueError: bad batch")
    assert "oomph/" not in error
    assert "----> 4 step(torch.ones(256, 1024, device=DEVICE))" in error
    text, page = cells[6].shown("text/plain"), cells[6].shown("text/html")
    assert text.startswith("In [7] · ")
    assert "In [7]:3" in text
    assert "<svg" in page and "In [7]:3" in page and "<script" not in page and "http:" not in page.replace("http://www.w3.org/2000/svg", "")


def test_free_works_after_each_recorded_exception(cells):
    assert cells[8].error.endswith("ValueError: bad batch")
    for cell in (cells[7], cells[9]):
        assert cell.printed["freed"] == cell.printed["change"] >= BATCH + HIDDEN
