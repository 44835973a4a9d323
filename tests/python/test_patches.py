"""What a program can see of the functions that we have put in the place of PyTorch's and Python's: what it sees of the originals."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.long, pytest.mark.nightly]

NAMESPACES = """
    import builtins, gc, hashlib, inspect, json, os, pickle, re, shutil, signal, sys, threading, types, warnings
    import torch

    DEVICE = sys.argv[1]
    model = torch.nn.Linear(4, 4).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4, device=DEVICE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    KINDS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
             types.ClassMethodDescriptorType, types.GetSetDescriptorType, property, staticmethod, classmethod, type)

    def tried(function, *args):
        try:
            return re.sub("0x[0-9a-f]+", "0x", str(function(*args)))
        except Exception as error:
            return type(error).__name__

    def described(value):
        names = ("__name__", "__qualname__", "__module__", "__doc__", "__objclass__", "__self__")
        kinds = [kind.__name__ for kind in KINDS if isinstance(value, kind)]
        seen = [tried(getattr, value, name) for name in names]
        line = getattr(getattr(inspect.unwrap(value), "__code__", None), "co_firstlineno", 0)
        return [kinds, *seen, line, tried(inspect.signature, value), tried(pickle.dumps, value) if kinds else ""]

    def shown(row):
        return [str(part) if len(str(part)) < 200 else hashlib.sha1(str(part).encode()).hexdigest() for part in row]

    found = {}
    warnings.simplefilter("ignore")
    pythons = [builtins, gc, os, pickle, shutil, signal, sys, threading, warnings]
    torchs = [module for name, module in sys.modules.items() if name.split(".")[0] == "torch" and type(module) is types.ModuleType]
    for module in pythons + torchs:
        if module in torchs:
            found[module.__name__] = ["module"]
        for name, value in list(vars(module).items()):
            if isinstance(value, KINDS) or callable(value):
                found[f"{module.__name__}:{name}"] = shown(described(value))
            if isinstance(value, type) and value.__module__.split(".")[0] in ("torch", "threading"):
                for name, member in list(vars(value).items()):
                    if isinstance(member, KINDS) or callable(member):
                        found[f"{value.__module__}.{value.__qualname__}.{name}"] = shown(described(member))
    storage = torch.UntypedStorage(4)
    bound = storage.resize_
    found["bound"] = shown([bound.__name__, bound.__qualname__, bound.__doc__, bound.__self__ is storage, len(bound(8))])
    found["identity"] = shown([torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl, torch.UntypedStorage.resize_ is
                               torch.UntypedStorage.resize_, torch.cuda.memory._snapshot is torch.cuda.memory._snapshot])
    json.dump(found, open(sys.argv[2], "w"))
"""

MADE_BY_CUDA = {"torch.cuda:_get_device_properties"}
"""What PyTorch itself adds when a program uses a GPU."""
TAKEN_BEFORE = {"torch.fx._symbolic_trace:_orig_module_call"}
"""PyTorch's own `Module.__call__`, which `pickle` cannot find any more."""
ADDED = "torch.storage.UntypedStorage.resize_"
PINNED = "torch.Tensor.pin_memory"
"""PyTorch's are inherited from classes of C++, where nothing can be replaced."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    (folder / "train.py").write_text(textwrap.dedent(NAMESPACES))
    command = [sys.executable, "train.py", "cpu", "seen.json"]
    subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300)
    return json.loads((folder / "seen.json").read_text())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_functions_in_the_place_of_others_look_like_them(run, predict, bare, device):
    recorded = run(
        NAMESPACES,
        *(["--cpu"] if device == "cpu" else []),
        gpu=device == "cuda",
        fresh=True,
        arguments=(device, "seen.json"),
        env={"OMP_NUM_THREADS": "1"},
    )
    assert recorded.done.returncode == 0, recorded.done.stderr
    seen = json.loads((predict.folder / "seen.json").read_text())
    expected = TAKEN_BEFORE | (MADE_BY_CUDA | {PINNED} if device == "cuda" else {ADDED})
    different = {name: (bare.get(name), seen.get(name)) for name in bare.keys() | seen.keys() if bare.get(name) != seen.get(name)}
    assert different.keys() == expected, {name: different.get(name) for name in different.keys() ^ expected}
    if device == "cpu":
        assert seen[ADDED] == bare["torch._C.StorageBase.resize_"]
    else:
        assert seen[PINNED] == bare["torch._C.TensorBase.pin_memory"]
