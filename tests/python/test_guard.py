"""Checkpoints of emulated runs: nothing is written, what a run has saved it can load, real files stay as they are."""

import pickle

import torch

from conftest import FORKING_PYTHON

MODEL = """
import io, os, shutil, sys, torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
model[2].weight = model[0].weight
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(8, 512, device="cuda")).sum().backward()
optimizer.step()
"""


def run(predict, lines, *options):
    """Runs a program that starts with a trained model; the files that are there afterwards, with their content."""
    result = predict.result(MODEL + lines, *options, steps="all")
    return result, {path.name: path.read_bytes() for path in predict.folder.iterdir() if path.name != "program.py"}


def test_saved_and_loaded(predict):
    lines = """
before = torch.cuda.memory_allocated()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, "best.pt")
assert torch.cuda.memory_allocated() == before
assert os.path.exists("best.pt") and os.path.getsize("best.pt") == 0  # programs look for it
loaded = torch.load("best.pt")
assert loaded["epoch"] == 3
weight = loaded["model"]["0.weight"]
assert weight.is_cuda and weight.dtype == torch.float32 and weight.shape == (512, 512)
assert weight.data_ptr() == loaded["model"]["2.weight"].data_ptr()
size = sum(tensor.numel() for tensor in model.parameters()) * 4
assert 3 * size <= torch.cuda.memory_allocated() - before < 3 * size + 20_000
model.load_state_dict(loaded["model"])
optimizer.load_state_dict(loaded["optimizer"])
optimizer.step()
"""
    result, files = run(predict, lines)
    assert files == {}
    assert result.said.count("torch.save writes nothing") == 1


def test_map_location(predict):
    lines = """
import pathlib
torch.save(model.state_dict(), pathlib.Path("a.pt"))
for place in ("cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, location: storage):
    weight = torch.load("a.pt", map_location=place)["0.weight"]
    assert weight.device.type == "cpu" and not weight.any()
torch.save(torch.ones(4), "b.pt")
assert torch.load("b.pt", map_location="cuda").is_cuda
assert torch.load(os.path.abspath("b.pt"), weights_only=True).shape == (4,)
"""
    assert run(predict, lines)[1] == {}


def test_large_tensors_take_no_memory(predict):
    lines = """
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
torch.save(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"), "large.pt")
assert torch.load("large.pt", map_location="cpu").numel() == 8 << 30
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
"""
    assert run(predict, lines)[1] == {}


def test_modules(predict):
    lines = """
torch.save(model, "model.pt")
loaded = torch.load("model.pt", weights_only=False)
assert type(loaded) is torch.nn.Sequential and isinstance(loaded[0].weight, torch.nn.Parameter)
assert loaded[0].weight is loaded[2].weight and loaded[0].weight is not model[0].weight
"""
    assert run(predict, lines)[1] == {}


def test_real_files_stay(predict, tmp_path):
    torch.save({"real": torch.ones(3)}, tmp_path / "best.pt")
    torch.save({"real": torch.ones(5)}, tmp_path / "old.pt")
    (tmp_path / "folder").mkdir()
    torch.save({"real": torch.ones(7)}, tmp_path / "folder" / "model.pth")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pt*")}
    lines = """
assert torch.load("best.pt")["real"].tolist() == [1, 1, 1]
torch.save(model.state_dict(), "best.pt")
assert "0.weight" in torch.load("best.pt")
os.remove("best.pt")
assert torch.load("best.pt")["real"].tolist() == [1, 1, 1]
os.remove("old.pt")
shutil.rmtree("folder")
os.rename("old.pt", "older.pt")
torch.save(model.state_dict(), "new.tmp")
os.replace("new.tmp", "best.pt")
assert "0.weight" in torch.load("best.pt")
"""
    result = predict.result(MODEL + lines, steps="all")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pt*")} == before
    assert "old.pt is a checkpoint of another run and was left alone" in result.said


def test_moved_and_copied(predict):
    lines = """
torch.save({"epoch": 1}, "checkpoint.pth.tar")
shutil.copyfile("checkpoint.pth.tar", "best.pth.tar")
os.mkdir("kept")
shutil.copy("checkpoint.pth.tar", "kept")
shutil.move("checkpoint.pth.tar", "moved.pt")
for path in ("best.pth.tar", "kept/checkpoint.pth.tar", "moved.pt"):
    assert torch.load(path)["epoch"] == 1
try:
    torch.load("checkpoint.pth.tar")
except FileNotFoundError:
    pass
else:
    raise AssertionError
shutil.rmtree("kept")
open("own.txt", "w").write("own")
os.rename("own.txt", "renamed.txt")
open("scratch.pt", "w").write("own")
os.remove("scratch.pt")
"""
    assert run(predict, lines)[1] == {"renamed.txt": b"own"}


def test_memory_and_open_files(predict):
    lines = """
buffer = io.BytesIO()
torch.save({"epoch": 2}, buffer)
buffer.seek(0)
assert torch.load(buffer)["epoch"] == 2
with open("open.pt", "wb") as file:
    torch.save({"epoch": 3}, file)
with open("open.pt", "rb") as file:
    assert torch.load(file)["epoch"] == 3
"""
    assert run(predict, lines)[1] == {"open.pt": b""}


def test_safetensors(predict):
    lines = """
from safetensors.torch import load_file, load_model, save_file, save_model
save_file({"w": torch.zeros(3, 4, dtype=torch.bfloat16, device="cuda")}, "w.safetensors", metadata={"format": "pt"})
loaded = load_file("w.safetensors")["w"]
assert loaded.shape == (3, 4) and loaded.dtype == torch.bfloat16 and not loaded.is_cuda
assert load_file("w.safetensors", device="cuda:0")["w"].is_cuda
save_model(model, "m.safetensors")
load_model(model, "m.safetensors")
"""
    assert run(predict, lines)[1] == {}


def test_what_looks_for_the_file(predict):
    lines = """
from safetensors import safe_open
from safetensors.torch import save_file
save_file({"w": torch.zeros(3, 4, dtype=torch.bfloat16, device="cuda")}, "w.safetensors")
with safe_open("w.safetensors", framework="pt", device="cuda:0") as file:
    assert list(file.keys()) == ["w"] and file.get_tensor("w").is_cuda
    part = file.get_slice("w")
    assert part.get_shape() == [3, 4] and part.get_dtype() == "BF16" and part[1:].shape == (2, 4)
torch.save({}, "a.pt")
os.replace("a.pt", "b.pt")
assert os.listdir().count("b.pt") == 1 and not os.path.exists("a.pt")
shutil.copy("b.pt", "c.pt")
os.remove("b.pt")
assert os.path.exists("c.pt") and not os.path.exists("b.pt")
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
LlamaForCausalLM(config).save_pretrained("model")
loaded = LlamaForCausalLM.from_pretrained("model").cuda()
assert loaded.config.hidden_size == 64
shutil.rmtree("model")
"""
    assert run(predict, lines)[1] == {}


def test_nothing_is_left_of_a_run_that_is_stopped(predict):
    lines = """
for step in range(50):
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    torch.save({"step": step}, f"step{step}.pt")
"""
    predict.result(MODEL + lines, steps="3")
    assert {path.name for path in predict.folder.iterdir()} <= {"program.py"}


def test_others(predict):
    lines = """
import torch.distributed.checkpoint as dcp
state = {"model": model.state_dict()}
dcp.save(state, checkpoint_id="distributed")
dcp.load(state, checkpoint_id="distributed")
torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "script.pt")
torch.onnx.export(torch.nn.Linear(2, 2), torch.zeros(1, 2), "linear.onnx")
import pickle
pickle.dump([1, 2], open("own.pickle", "wb"))
"""
    files = run(predict, lines)[1]
    assert set(files) == {"own.pickle"} and pickle.loads(files["own.pickle"]) == [1, 2]


def test_lightning(predict, tmp_path):
    """Lightning writes the bytes itself; a module of the same name and shape stands for it."""
    package = tmp_path / "packages" / "lightning_fabric" / "utilities"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "cloud_io.py").write_text(
        "import io, torch\n"
        "def _load(path_or_url, map_location=None, weights_only=None):\n"
        "    with open(path_or_url, 'rb') as file:\n"
        "        return torch.load(file, map_location=map_location, weights_only=weights_only)\n"
        "def _atomic_save(checkpoint, filepath):\n"
        "    buffer = io.BytesIO()\n"
        "    torch.save(checkpoint, buffer)\n"
        "    with open(filepath, 'wb') as file:\n"
        "        file.write(buffer.getvalue())\n"
    )
    lines = """
sys.path.insert(0, "packages")
from lightning_fabric.utilities.cloud_io import _atomic_save, _load
_atomic_save({"epoch": 4, "w": model[0].weight}, "last.ckpt")
assert _load("last.ckpt", map_location="cpu")["epoch"] == 4
"""
    predict.result(MODEL + lines, steps="all")
    assert not (tmp_path / "last.ckpt").exists()


def test_kept_on_request(predict):
    _, files = run(predict, 'torch.save({"epoch": 5}, "kept.pt")\n', "--keep-files")
    assert set(files) == {"kept.pt"}


def test_kept_by_every_command_that_emulates(predict):
    predict.write('import torch\ntorch.zeros(1, device="cuda")\ntorch.save({"epoch": 5}, "kept.pt")\n')
    for command in ("run", "check"):
        options = ["--emulate", "h200"]
        limits = ["--max-peak", "1GiB"] if command == "check" else []
        for keep in ([], ["--keep-files"]):
            done = predict.run(command, *options, *limits, *keep, "--", FORKING_PYTHON.emulated, "train.py")
            assert done.returncode == 0, done.stderr
            assert (predict.folder / "kept.pt").exists() == bool(keep)
        (predict.folder / "kept.pt").unlink()
