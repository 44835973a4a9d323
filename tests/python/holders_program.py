"""Holds tensors in every way that programs do, asks oomph who holds each, lets the named holder go, and measures what is freed.

Run as a script with a device: each case becomes variables of `__main__`, with names of its own. One walk through the objects
of the process serves all of them. Prints one JSON object a line.
"""

import functools
import gc
import json
import sys
import textwrap
import weakref

import torch

from oomph import holders

DEVICE = sys.argv[1]
SIZE = 1 << 20
"""Bytes of a tensor: what the allocator takes for it is the same."""

tensors: list = []
last_of: dict = {}
"""The tensor that each case made last."""
CASES = {
    # name: what makes it, an expression for one tensor, what the holder is called, how it came to hold it, what lets it go
    "list": ("kept = [make() for _ in range(4)]", "kept[1]", "__main__.kept", "container", "kept.clear()"),
    "list of graphs": (
        "weight = make().requires_grad_()\nlosses = [(weight * make()).exp().sum() for _ in range(4)]",
        "losses[1]", "__main__.losses", "container", "losses.clear()",
    ),
    "dictionary": (
        "cache = {'train': {}}\nfor step in range(3): cache['train'][step] = make()",
        "cache['train'][1]", "__main__.cache['train']", "container", "cache['train'].clear()",
    ),
    "deque": (
        "import collections\nrecent = collections.deque(make() for _ in range(3))",
        "recent[1]", "__main__.recent", "container", "recent.clear()",
    ),
    "set": ("seen = {make() for _ in range(3)}", "next(iter(seen))", "__main__.seen", "container", "seen.clear()"),
    "attribute": (
        "class Trainer: pass\ntrainer = Trainer()\ntrainer.best = make()",
        "trainer.best", "__main__.trainer.best", "variable", "trainer.best = None",
    ),
    "slot": (
        "class Slotted: __slots__ = ('best', 'worst')\nslotted = Slotted()\nslotted.worst = make()",
        "slotted.worst", "__main__.slotted.worst", "variable", "slotted.worst = None",
    ),
    "class": (
        "class Cache: store = []\nCache.store += [make(), make()]",
        "Cache.store[0]", "__main__.Cache.store", "container", "Cache.store.clear()",
    ),
    "closure": (
        "def around():\n    batch = make()\n    def inner(): return batch\n    return inner\ncallback = around()",
        "callback()", "__main__.callback closure batch", "closure", "callback = None",
    ),
    "default": (
        "def scale(x, by=make()): return x * by",
        "scale.__defaults__[0]", "__main__.scale.__defaults__", "variable", "scale = None",
    ),
    "partial": (
        "import functools\npart = functools.partial(print, make())",
        "part.args[0]", "__main__.part.args", "variable", "part = None",
    ),
    "exception": (
        "def fail():\n    hidden = make()\n    raise ValueError('bad batch')\nfailures = []\n"
        "for step in range(3):\n    try: fail()\n    except ValueError as error: failures.append(error)",
        "latest()", "__main__.failures[2].__traceback__.tb_next.tb_frame local hidden", "exception", "failures[2] = None",
    ),
    "last error": (
        "def fail_last():\n    hidden = make()\n    raise ValueError('bad batch')\n"
        "try: fail_last()\nexcept ValueError as error: sys.last_traceback = error.__traceback__",
        "latest()", "sys.last_traceback.tb_next.tb_frame local hidden", "last_error", "sys.last_traceback = None",
    ),
    "module hook": (
        "model = torch.nn.Linear(4, 4)\ndef keep():\n    seen = []\n"
        "    def hook(module, given, out): seen.append(make())\n    return hook\n"
        "forward_handle = model.register_forward_hook(keep())\nfor step in range(3): model(torch.zeros(4))",
        "model._forward_hooks[forward_handle.id].__closure__[0].cell_contents[1]",
        "__main__.model._forward_hooks[ID] closure seen", "hook", "forward_handle.remove()",
    ),
    "tensor hook": (
        "hooked = torch.zeros(4, requires_grad=True)\ndef keep_scale():\n    scale = make()\n    return lambda grad: grad * scale.mean()\n"
        "handle = hooked.register_hook(keep_scale())",
        "hooked._backward_hooks[handle.id].__closure__[0].cell_contents",
        "__main__.hooked._backward_hooks[ID] closure scale", "hook", "handle.remove()",
    ),
    "cache": (
        "import functools\n@functools.lru_cache(maxsize=None)\ndef grid(size): return make()\nfor size in range(3): grid(size)",
        "grid(1)", "__main__.grid cache", "cache", "grid.cache_clear()",
    ),
    "bounded cache": (
        "import functools\n@functools.lru_cache(maxsize=8)\ndef mask(size): return make()\nfor size in range(3): mask(size)",
        "mask(1)", "__main__.mask", "cache", "mask.cache_clear()",
    ),
    "logger": (
        "class RunLogger:\n    def __init__(self): self.records = []\nlog = RunLogger()\nlog.records += [make(), make()]",
        "log.records[1]", "__main__.log.records", "logger", "log.records.clear()",
    ),
    "context": (
        "class Scale(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        ctx.factor = make()\n"
        "        return x * 2\n    @staticmethod\n    def backward(ctx, grad): return grad\n"
        "small = torch.zeros(4, requires_grad=True)\nout = Scale.apply(small)",
        "out.grad_fn.factor", "__main__.out.grad_fn.factor", "context", "del out.grad_fn.factor",
    ),
    "output of a cell": ("Out = {3: make(), 4: make()}", "Out[3]", "__main__.Out", "notebook", "Out.clear()"),
    "last value": ("_ = make()", "_", "__main__._", "notebook", "_ = None"),
    "generator": (
        "def loader():\n    batch = make()\n    yield 1\n    yield batch\nsuspended = loader()\nnext(suspended)",
        "latest()", "__main__.suspended local batch", "generator", "suspended = None",
    ),
    "running total": (
        "scale_of_all = make().requires_grad_()\ntotal = torch.zeros((), device=DEVICE)\n"
        "for step in range(8): total = total + (scale_of_all * make()).exp().sum()  # the most of all",
        "", "__main__.total", "chain", "total = None",
    ),
    "view": ("first = make()[0:1]", "first", "__main__.first", "variable", "first = None"),
    "gradient": (
        "leaf = make().requires_grad_()\nleaf.sum().backward()",
        "leaf.grad", "__main__.leaf.grad", "variable", "leaf.grad = None",
    ),
    "array of objects": (
        "import numpy\narray = numpy.empty(2, dtype=object)\narray[1] = make()",
        "array[1]", "__main__.array", "variable", "array[1] = None",
    ),
}  # fmt: skip


def make():
    tensor = torch.ones(SIZE // 4, device=DEVICE)
    tensors.append(weakref.ref(tensor))
    return tensor


def latest():
    """The tensor that the case made last, where no expression leads to it without leaving something behind."""
    return last_of[name]()


def live():
    """Bytes of tensors, by the allocator's count or, on the CPU, by what is still there."""
    if DEVICE == "cuda":
        return torch.cuda.memory_allocated()
    return sum(size for reference, size in made if not reference.expired())


if DEVICE == "cpu":
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Count(TorchDispatchMode):
        """Notes the storage of every tensor that is made."""

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    reference = StorageWeakRef(tensor.untyped_storage())
                    if all(reference.cdata != known.cdata for known, _ in made if not known.expired()):
                        made.append((reference, tensor.untyped_storage().nbytes()))
            return result

    Count().__enter__()

asking = sys.modules[holders.__module__]
asking.walk = functools.cache(asking.walk)
gc.disable()
for name, (setup, *_rest) in CASES.items():
    exec(textwrap.dedent(setup), globals())
    last_of[name] = tensors[-1]
answers = {}
for name, (_setup, tensor, *_rest) in CASES.items():
    answers[name] = eval(f"holders({tensor})")
for name, (_setup, _tensor, path, _kind, clear) in CASES.items():
    hook_id = eval(clear.replace("remove()", "id")) if "ID" in path else ""
    before = live()
    exec(clear, globals())
    row = {"held_by": answers[name].held_by, "holder": answers[name].holder, "freed": before - live()}
    print(json.dumps({"case": name, **row, "id": hook_id}), flush=True)
