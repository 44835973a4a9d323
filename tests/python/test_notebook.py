"""`%load_ext oomph`: notebooks executed by nbclient with a real kernel, on an emulated GPU and on the CPU; and IPython without one."""

import json
import os
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


@pytest.fixture(scope="module", params=["cuda", pytest.param("cpu", marks=pytest.mark.nightly)])
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
        NotebookClient(
            notebook, kernel_name="tested", timeout=300, allow_errors=True, resources={"metadata": {"path": str(folder)}}
        ).execute()
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
    assert (
        "<svg" in page
        and "In [7]:3" in page
        and "<script" not in page
        and "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    )


def test_free_works_after_each_recorded_exception(cells):
    assert cells[8].error.endswith("ValueError: bad batch")
    for cell in (cells[7], cells[9]):
        assert cell.printed["freed"] == cell.printed["change"] >= BATCH + HIDDEN


SHELL = """
import json, sys
import torch
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "oomph")

def cell(code, **options):
    return shell.run_cell(code, store_history=True, **options)

def say(**values):
    print("SAID", json.dumps(values))
"""


def in_shell(program: str, folder) -> list[dict]:
    """What a program says that runs cells without a kernel."""
    (folder / "program.py").write_text(SHELL + textwrap.dedent(program))
    done = subprocess.run(
        [FORKING_PYTHON.cpu, "program.py"], capture_output=True, text=True, cwd=folder, timeout=300,
        env={**os.environ, "IPYTHONDIR": str(folder / "ipython")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return [json.loads(line.removeprefix("SAID ")) for line in done.stdout.splitlines() if line.startswith("SAID ")]


def test_what_variables_hold_is_left_alone(tmp_path):
    program = """
    cell("import torch, gc; gc.disable()")
    cell("def fail():\\n    batch = torch.ones(1 << 18)\\n    raise ValueError('bad')")
    cell("try: fail()\\nexcept ValueError as error: stored = error")  # in a variable: not the last error
    cell("kept = torch.ones(1 << 17)")
    cell("kept")                                                      # Out[5] is a variable as well
    cell("_, second = torch.ones(1 << 16), 1")                        # `_` is the user's own from here on
    cell("class Loop: pass\\nloop = Loop(); loop.loop, loop.data = loop, torch.ones(1 << 15); del loop")
    cell("def pausing():\\n    data = torch.ones(1 << 14)\\n    yield 1\\npaused = pausing(); next(paused)")
    cell("[torch.ones(1 << 13), kept]")                               # only part of it is nowhere else
    cell("def again():\\n    try: fail()\\n    except ValueError: raise KeyError('context')\\nagain()")
    names = lambda answer: {row.keeper.name: row.bytes for row in answer.rows}
    who = shell.run_line_magic("oomph", "who")
    trial = shell.run_line_magic("oomph", "free --dry-run")
    freed = shell.run_line_magic("oomph", "free")
    second = shell.run_line_magic("oomph", "free")
    ns = shell.user_ns
    say(who=names(who), trial=trial.allocated, freed=freed.allocated, second=second.allocated, left=names(freed.kept),
        steps={step.name: step.allocated for step in freed.steps}, out=sorted(ns["Out"]),
        own=[ns["_"].numel(), ns["kept"].numel(), ns["stored"].__traceback__ is not None, next(ns["paused"], "end")])
    cell("%tb")
    cell("1 + 1")
    cell("_")
    say(last=str(ns["Out"].get(12)))
    """
    first, last = in_shell(program, tmp_path)
    sizes = {"stored": 4 << 18, "kept": 4 << 17, "_": 4 << 16, "garbage": 4 << 15, "paused": 4 << 14, "Out[9]": 4 << 13}
    assert first["who"] == {**sizes, "last error": 4 << 18}
    assert first["steps"] == {"garbage": 4 << 15, "last error": 4 << 18, "Out[9]": 4 << 13}
    assert first["freed"] == first["trial"] == sum(first["steps"].values())
    assert first["second"] == 0
    assert first["left"] == {name: sizes[name] for name in ("stored", "kept", "_", "paused")}
    assert first["out"] == [5, 8]
    assert first["own"] == [1 << 16, 1 << 17, True, "end"]
    assert last["last"] == "2"


def test_a_recorded_cell_runs_as_it_would_without_us(tmp_path):
    program = """
    import io, contextlib, re, warnings
    CELLS = {
        "value": "a = 1\\na + 1",
        "no value": "b = 2;",
        "hidden": "a + 1;",
        "error": "def f():\\n    raise ValueError('x')\\nf()",
        "syntax": "x = (",
        "name": "undefined_name",
        "magic": "%time c = 3\\nc",
        "cell magic": "%%capture out\\nprint('inside')",
        "await": "import asyncio\\nawait asyncio.sleep(0, 5)",
        "future": "from __future__ import annotations\\ndef g(x: nonsense): return x\\ng(7)",
        "interrupt": "import os, signal, time\\nos.kill(os.getpid(), signal.SIGINT)\\ntime.sleep(5)",
        "string": "text = '''\\n%oomph run x\\n'''\\ntext",
        "exit": "import sys\\nsys.exit(3)",
        "display": "display('shown')",
        "loop": "for i in range(3):\\n    %time i\\ni",
    }
    def run(code):
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = cell(code)
        error = result.error_in_exec or result.error_before_exec
        trace, functions = error.__traceback__ if error else None, []
        while trace is not None:
            functions.append((trace.tb_frame.f_code.co_name, trace.tb_frame.f_code.co_filename.rpartition("/")[2].startswith("<ipython")))
            trace = trace.tb_next
        out = shell.user_ns["Out"].get(result.execution_count, "nothing")
        return [str(type(error)), str(error)[:15], functions, repr(result.result), repr(out), result.success], text.getvalue()
    for name, code in CELLS.items():
        plain, _ = run(code)
        recorded, text = run("%%oomph\\n" + code)
        say(name=name, plain=plain, recorded=recorded, reports=text.count("no memory of tensors") + text.count("· CPU ·"))
    """
    answers = in_shell(program, tmp_path)
    assert len(answers) == 15
    for answer in answers:
        assert answer["recorded"] == answer["plain"], answer
        assert answer["reports"] == (answer["name"] != "syntax"), answer


def test_one_line_or_a_script_is_recorded(tmp_path):
    (tmp_path / "train.py").write_text("import sys, torch\nmade = torch.ones(1 << 18)\nprint(sys.argv[1:])\n")
    program = """
    import io, contextlib, pathlib, tempfile
    def run(code):
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(text):
            result = cell(code)
        return result.result, text.getvalue()
    cell("import torch")
    value, text = run("%oomph run torch.ones(1 << 18).sum().item()")
    say(value=value, reports=text.count("1.00 MiB allocated"))
    value, text = run("%oomph run x = torch.ones(1 << 18)\\nprint('after')")
    say(value=value, report_is_first=text.index("allocated") < text.index("after"), x=shell.user_ns["x"].numel())
    value, text = run("for size in (18, 19):\\n    %oomph run torch.ones(1 << size)")
    say(reports=text.count("live at the peak"))
    value, text = run("%oomph run --output kept train.py a 'b c'")
    say(argv="['a', 'b c']" in text, made=shell.user_ns["made"].numel(), kept=pathlib.Path("kept/rank0.pickle").exists())
    before = set(pathlib.Path(tempfile.gettempdir()).glob("oomph-*"))
    run("%oomph run torch.ones(5)")
    run("%oomph run torch.ones(5)")
    say(folders=[str(path) for path in set(pathlib.Path(tempfile.gettempdir()).glob("oomph-*")) - before if any(path.glob("rank0.*"))])
    for wrong in ("%oomph", "%oomph nothing", "%oomph run", "y = %oomph run x", "%oomph who --output a", "%oomph free all", "%oomph who --top no"):
        say(usage=run(wrong)[1])
    say(left=[name for name in shell.user_ns if "oomph" in name])
    shell.run_line_magic("unload_ext", "oomph")
    say(usage=run("%oomph who")[1])
    """
    value, assigned, loop, script, folders, *usage, left, unloaded = in_shell(program, tmp_path)
    assert value == {"value": float(1 << 18), "reports": 1}
    assert assigned == {"value": None, "report_is_first": True, "x": 1 << 18}
    assert loop == {"reports": 2}
    assert script == {"argv": True, "made": 1 << 18, "kept": True}
    assert len(folders["folders"]) == 1
    assert not os.path.exists(folders["folders"][0])  # since the program has ended
    assert len(usage) == 7
    for answer in usage:
        assert answer["usage"].startswith("UsageError: ") and "Traceback" not in answer["usage"], answer
    assert left == {"left": []}
    assert "not found" in unloaded["usage"]


def test_cells_of_variables_are_those_that_gave_them_their_value(tmp_path):
    program = """
    shell.run_line_magic("unload_ext", "oomph")
    cell("early = 1")
    cell("twice = 1")
    cell("twice = 2")
    cell("%load_ext oomph")
    cell("later = early = object()")
    cell("later = object()")
    cell("raise ValueError; later = 1")
    cell("exec('dynamic = object()')")
    cells = shell.magics_manager.registry["OomphMagics"].cells
    say(**{name: cells.of(name) for name in ("early", "twice", "later", "dynamic", "none")})
    """
    [answer] = in_shell(program, tmp_path)
    assert answer == {"early": "In [5]", "twice": "In [2] or [3]", "later": "In [6]", "dynamic": "In [8]", "none": ""}


def test_without_torch_nothing_is_held(tmp_path):
    program = (
        'say(who=shell.run_line_magic("oomph", "who"), free=shell.run_line_magic("oomph", "free"), torch="torch" in sys.modules)'
    )
    (tmp_path / "program.py").write_text(SHELL.replace("import torch\n", "") + program)
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert "torch is not imported" in done.stdout and '"torch": false' in done.stdout, done.stderr


def test_the_extension_costs_nothing_before_it_is_loaded():
    code = "import sys, oomph; print([name for name in sys.modules if name.startswith(('IPython', 'torch', 'oomph.'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_timeline_adds_up(tmp_path):
    import oomph
    from conftest import FIXTURES

    snapshot = oomph.load(FIXTURES / "zoo/leak_infer_outputs.pickle.xz")
    [timeline] = json.loads(snapshot._native.timeline(100))
    sums = [column["before"] + sum(column["categories"].values()) for column in timeline["columns"]]
    assert len(sums) == 100
    assert max(sums) == snapshot.peak.allocated
