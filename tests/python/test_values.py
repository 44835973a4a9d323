"""Values on the emulated GPU: what `python/oomph/emulation/values.py` computes, makes up, notes, and leaves alone.

Each test runs a script in a process of its own, with the emulator loaded ahead of torch. A script sees `show(...)`, which the test gets back, `cuda`, and `value(tensor)`:
1 known, 2 made up, 0 unknown.
"""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from conftest import EMULATOR, FORKING_PYTHON
from forking import EMULATED

ROOT = Path(__file__).resolve().parents[2]
H200 = (
    "name=NVIDIA H200;devices=1;memory=150109880320;others=0;context=552599552;cublas=71303168;cudnn=102760448;major=9;"
    "minor=0;multiprocessors=132;threads_per_multiprocessor=2048;blocks_per_multiprocessor=32;"
    "shared_per_multiprocessor=233472;shared_per_block_optin=232448;l2=62914560;clock_khz=1980000;"
    "memory_clock_khz=3201000;bus_bits=6144"
)
PRELUDE = """
import ctypes, json, sys
library = ctypes.CDLL({library!r}, mode=ctypes.RTLD_GLOBAL)
import torch
sys.path.append({python!r})
from oomph.emulation import values
if {installed}:
    values.install(library, {unknown})
    memory = values._handlers.memory
cuda = torch.device("cuda")
shown = []
def show(*things):
    shown.extend(thing.tolist() if isinstance(thing, torch.Tensor) else thing for thing in things)
def value(tensor):
    return memory.value(tensor)
def requests():
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [(event["action"], event["size"]) for event in trace if event["action"] in ("alloc", "free_requested")]
exec(compile(open({script!r}).read(), {script!r}, "exec"))
print("\\n" + json.dumps(shown))
"""


@pytest.fixture
def run(tmp_path):
    def run(script, installed=True, unknown=0):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(script))
        places = {"library": str(EMULATOR), "python": str(ROOT / "python"), "script": str(path)}
        prelude = PRELUDE.format(**places, installed=installed, unknown=unknown)
        env = {**os.environ, **EMULATED, "OOMPH_EMULATOR": H200, "OOMPH_EMULATOR_NOTES": str(tmp_path / "notes")}
        done = subprocess.run([FORKING_PYTHON.emulated, "-c", prelude], capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_small_integers_are_computed(run):
    assert run("""
        x = torch.arange(10, device=cuda)
        show(x % 3 == 0, x.sum(), (x > 4).any().item(), torch.tensor([3, 4], device=cuda).max())
        y = torch.zeros(3, 3, dtype=torch.int64, device=cuda)
        y[:, 1] = 7
        y[2] += y[1]
        y.t()[0].copy_(torch.arange(3))
        show(y)
        out = torch.empty(0, dtype=torch.int64, device=cuda)
        torch.add(x[:3], x[3:6], alpha=2, out=out)
        show(out)
        a, b = torch.arange(3, device=cuda), torch.ones(2, dtype=torch.int64, device=cuda)
        torch._foreach_add_([a, b], 5)
        show(a, b, torch._foreach_mul([a, b], 2)[0])
        show(torch.tril_indices(2, 2, device=cuda), torch.eye(2, device=cuda), torch.full((2,), 3, device=cuda))
        show(value(y), value(out), value(b))
    """) == [
        [True, False, False, True, False, False, True, False, False, True], 45, True, 4,
        [[0, 7, 0], [1, 7, 0], [2, 14, 0]],
        [6, 9, 12],
        [5, 6, 7], [6, 6], [10, 12, 14],
        [[0, 1, 1], [0, 0, 1]], [[1.0, 0.0], [0.0, 1.0]], [3, 3],
        1, 1, 1,
    ]  # fmt: skip


def test_numbers_keep_the_type_of_the_tensor(run):
    assert run("""
        i = torch.ones((), dtype=torch.int32, device=cuda)
        h = torch.ones((), dtype=torch.float16, device=cuda)
        for t in (i + 1, 1 - i, i // 2, i % 2, i & 1, i * True, 2**i, h * 1.5, h + 1, i / 2, i * 1.5, torch.where(i > 0, i, 3)):
            show(str(t.dtype), t)
    """) == [
        "torch.int32", 2, "torch.int32", 0, "torch.int32", 0, "torch.int32", 1, "torch.int32", 1, "torch.int32", 1, "torch.int32", 2,
        "torch.float16", 1.5, "torch.float16", 2.0, "torch.float32", 0.5, "torch.float32", 1.5, "torch.int32", 1,
    ]  # fmt: skip


def test_copies_keep_values_in_both_directions(run):
    assert run("""
        torch.manual_seed(1)
        for dtype in (torch.int64, torch.bool):
            x = torch.randint(0, 2, (400_000,)).to(dtype)
            d = x.cuda()
            show(torch.equal(d.cpu(), x), d.sum().item() == x.sum().item(), torch.equal(d.clone()[::3].cpu(), x[::3]))
        x = torch.arange(6).reshape(2, 3)
        show(x.cuda().float().cpu(), x.cuda().t().cpu(), x.to(cuda, torch.int32).tolist())
        show(value(torch.randn(1024).cuda()), value(torch.randn(1 << 20).cuda()))
        for t in (torch.tensor([1], device=cuda), torch.as_tensor([1], device=cuda), x.cuda().new_tensor([1])):
            show(value(t))
    """) == [
        *[True] * 6,
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [[0, 3], [1, 4], [2, 5]], [[0, 1, 2], [3, 4, 5]],
        1, 0, 1, 1, 1,
    ]  # fmt: skip


DYNAMIC = """
    import torchvision
    t = lambda data: torch.tensor(data, device=device)
    x = t([[3, 0, 1], [3, 0, 0], [3, 0, 1]])
    show(x.nonzero(), x[x > 0], torch.masked_select(x, x == 3), torch.where(x == 1))
    show(torch.unique(x), *torch.unique(x, return_inverse=True, return_counts=True))
    show(*torch.unique(x, dim=0, return_inverse=True, return_counts=True))
    show(*torch.unique_consecutive(x.flatten(), return_counts=True), torch.unique_consecutive(x, dim=1))
    show(torch.unique(x > 0), torch.bincount(x.flatten()), torch.histc(x.float(), 4))
    show(torch.repeat_interleave(t([5, 6, 7]), t([2, 0, 3])), torch.repeat_interleave(t([1, 2]), output_size=3))
    show(torch.nn.functional.one_hot(t([0, 2])), torch.equal(x, x.clone()), torch.equal(x, x + 1))
    x[x == 3] = t([9, 8, 7])
    x[x == 0] = 5
    show(x, torch.argwhere(x == 5), torch.count_nonzero(x))
    boxes = t([[0, 0, 10, 10], [1, 1, 10, 10], [50, 50, 60, 60.0]])
    show(torchvision.ops.nms(boxes, t([0.9, 0.8, 0.7]), 0.5))
    show(torchvision.ops.batched_nms(boxes, t([0.9, 0.8, 0.7]), t([0, 1, 0]), 0.5))
"""


def test_sizes_that_depend_on_known_values_are_right(run):
    # `torch.where` gives a tuple of tensors.
    script = DYNAMIC.replace("torch.where(x == 1)", "*torch.where(x == 1)")
    on_device = run("    device = cuda" + script + "    show(len(values.reads()))\n")
    assert on_device == [*run("    device = 'cpu'" + script), 0]


def test_sizes_that_depend_on_unknown_values_are_made_up(run):
    assert run("""
        x = torch.randn(1000, 64, device=cuda) @ torch.randn(64, 8, device=cuda)
        show(list((x > 0).nonzero().shape), list(x[x > 0].shape), list(torch.unique((x * 10).long()).shape))
        show(list(torch.repeat_interleave((x[:, 0] * 3).long()).shape))
        places = (x > 0).nonzero()
        show(places.min(), places[:, 0].max() < 1000, places[:, 1].max() < 8, value(places))
        show(sorted({(read.operator, read.kind) for read in values.reads()}))
    """) == [
        [4000, 2], [4000], [4000], [1000], 0, True, True, 2,
        [["aten::_unique2", "unknown"], ["aten::copy_", "made up"],
         ["aten::nonzero", "unknown"], ["aten::repeat_interleave", "unknown"]],
    ]  # fmt: skip


def test_masks_in_floating_point_are_computed(run):
    shown = run("""
        labels = torch.arange(8).repeat_interleave(32).to(cuda)
        same = labels[:, None].eq(labels).float()
        show(value(same), same.sum().item(), same.nonzero().shape[0], int((same > 0).sum()), int(same.bool().sum()))
        eye = torch.eye(300).to(cuda)
        scores = torch.empty(300, 300, device=cuda).uniform_()
        show(scores[eye.bool()].shape[0], scores[~eye.bool()].view(300, -1).shape[1])
        masked = torch.ones_like(eye).scatter(1, torch.arange(300, device=cuda)[:, None], 0)
        show(value(masked), int(masked.sum()))
        # Of other large floats nothing is kept.
        show(value(torch.linspace(0, 1, 4096, device=cuda)), value(torch.eye(600).to(cuda)))
    """)
    assert shown == [1, 8192, 8192, 8192, 8192, 300, 299, 1, 300 * 299, 0, 0]


def test_what_is_written_into_a_copy_of_known_values_is_unknown(run):
    shown = run("""
        unknown = torch.empty(64, 4, device=cuda)
        zeros, places = torch.zeros(64, 16, device=cuda), torch.arange(4, device=cuda).expand(64, 4).contiguous()
        show(value(zeros), value(zeros.scatter(1, places, unknown)), value(zeros.scatter_add(1, places, unknown)))
        show(value(zeros.index_put((places,), unknown[0, 0])), value(zeros.masked_scatter(zeros == 0, unknown.repeat(1, 4))))
    """)
    assert shown == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("unknown", [0, 1])
def test_a_router_sends_each_token_to_as_many_experts_as_it_counts(run, unknown):
    script = """
        gates = torch.empty(2000, 10, device=cuda).softmax(1)
        taken, experts = gates.topk(4, dim=1)
        routed = torch.zeros_like(gates).scatter(1, experts, taken / taken.sum(1, keepdim=True))
        show((routed > 0).sum(0), routed.nonzero().shape[0], round(gates.sum(1).mean().item(), 3))
    """
    *loads, routed, total = run(script, unknown=unknown)
    assert (sum(loads[0]), routed, total) == (8000, 8000, 1)
    assert (max(loads[0]) > 2 * min(loads[0])) is bool(unknown), "another plausible outcome, for the run with other values"


@pytest.mark.parametrize(("unknown", "counts"), [(0, [50, 50, 50]), (1, [25, 25, 25])])
def test_a_count_of_unknown_values_is_another_one_in_the_run_with_other_values(run, unknown, counts):
    shown = run(
        """
        tensor = torch.empty(100, device=cuda)
        show(tensor[tensor > 0.5].shape[0], tensor.unique().shape[0], tensor.nonzero().shape[0])
        """,
        unknown=unknown,
    )
    assert shown == counts


def test_indices_over_unknown_values_are_valid_and_spread_out(run):
    script = """
        x = torch.randn(512, 64, device=cuda) @ torch.randn(64, 8, device=cuda)
        chosen = x.topk(2).indices
        show(chosen.unique(return_counts=True)[1], (chosen[:, 0] == chosen[:, 1]).any())
        show(all(sorted(row) == list(range(8)) for row in x.sort().indices.tolist()))
        show(all(sorted(row) == list(range(512)) for row in x.argsort(0).t().tolist()))
        show(x.argmax(-1).unique(return_counts=True)[1], x.argmax().item() < x.numel(), x.max(1).indices.max() < 8)
        drawn = torch.multinomial(x.softmax(-1), 3)
        show((drawn.sort(1).values.diff(dim=1) > 0).all(), drawn.max() < 8)
        show(torch.searchsorted(x.sort().values, x).max() <= 8, value(drawn), value(chosen), drawn)
    """
    result = run(script)
    counts, repeated, rows, columns, best, *others = result
    assert min(counts) > 100 and sum(counts) == 1024 and not repeated and rows and columns
    assert min(best) > 50 and sum(best) == 512
    assert others[:-1] == [True, True, True, True, True, 2, 2]
    assert run(script) == result


def test_random_numbers_are_made_up_without_touching_the_programs_generators(run):
    script = """
        torch.manual_seed(3)
        r = torch.randint(2, 7, (1000,), device=cuda)
        p = torch.randperm(100, device=cuda)
        mask = torch.rand(400, 500, device=cuda) < 0.25
        drop = torch.empty(1000, device=cuda).bernoulli_(0.5)
        noise = torch.randn(100_000, device=cuda)
        if installed:
            show(r.min(), r.max(), p.sort().values.tolist() == list(range(100)), abs(mask.sum().item() - 50_000) < 1000)
            show(mask.nonzero().shape[0] == mask.sum(), 400 < drop.sum() < 600, 0.8 < noise[:512].std().item() < 1.2)
            show([value(t) for t in (r, p, mask, drop, noise)])
        show(torch.rand(3), torch.cuda.get_rng_state().sum().item())
    """
    made = run("        installed = True" + script)
    assert made[:8] == [2, 6, True, True, True, True, True, [2] * 5]
    assert made[8:] == run("        installed = False" + script, installed=False)


def test_unknown_numbers_are_finite_and_otherwise_zero(run):
    assert run("""
        x = torch.randn(2000, 64, device=cuda) @ torch.randn(64, 8, device=cuda)
        show(torch.isfinite(x).all(), torch.isfinite(x.sum()).item(), torch.isnan(x).any(), torch.isinf(x).any())
        show((x > 0).any(), x.sum().item())
    """) == [True, True, False, False, False, 0.0]


@pytest.mark.parametrize("unknown", [0, 1])
def test_conditions_on_numbers_hold_if_they_hold_for_what_these_read_as(run, unknown):
    script = """
        x = torch.randn(2000, 64, device=cuda) @ torch.randn(64, 8, device=cuda)
        top, limit = x.max(), torch.tensor(0.5, device=cuda)
        show(top.item(), x.isnan().any(), x.sum().isnan(), top.isinf())
        show(bool(top <= 1), bool(top >= 0), bool(top > 0), bool(top < 0), bool(top == 1), bool(top != 1))
        show(bool(top < limit), bool(limit > top), bool(top[None] > limit))
    """
    numbers = [unknown <= 1, unknown >= 0, unknown > 0, unknown < 0, unknown == 1, unknown != 1]
    assert run(script, unknown=unknown) == [unknown, False, False, False, *numbers, unknown < 0.5, 0.5 > unknown, unknown > 0.5]


def test_reads_are_noted_with_their_place_in_the_program(run):
    shown = run("""
        def evaluate(loss):
            return loss.item()

        x = torch.randn(2000, 64, device=cuda) @ torch.randn(64, 8, device=cuda)
        for _ in range(3):
            evaluate(x.sum())
        torch.arange(3, device=cuda).sum().item()
        torch.randint(5, (3,), device=cuda).tolist()
        x.cpu()
        bool(x.sum() > 0)
        show(*(vars(read) for read in values.reads()))
    """)
    for read in shown:
        assert read.pop("file").endswith("program.py")
    assert shown == [
        {"line": 3, "function": "evaluate", "operator": "aten::_local_scalar_dense", "kind": "unknown", "size": 4, "count": 3},
        {"line": 9, "function": "<module>", "operator": "aten::copy_", "kind": "made up", "size": 24, "count": 1},
        {"line": 10, "function": "<module>", "operator": "aten::copy_", "kind": "unknown", "size": 64000, "count": 1},
        {"line": 11, "function": "<module>", "operator": "aten::_local_scalar_dense", "kind": "made up", "size": 1, "count": 1},
    ]  # fmt: skip


TRAINING = """
    import gc
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 2 + (x > 0) * 0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(100, 64)
            self.block = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
            self.encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            self.head = nn.Linear(64, 100)

        def forward(self, ids):
            x = self.encoder(self.embed(ids), src_key_padding_mask=ids == 0)
            x = checkpoint(self.block, x.flatten(0, 1), use_reentrant=REENTRANT)
            return self.head(Twice.apply(x))

    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(context=None)
    model = Model().cuda()
    model.head.weight.register_hook(lambda gradient: gradient * 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=FOREACH, fused=not FOREACH)
    for step in range(4):
        ids = torch.randint(1, 100, (4, 16)).cuda()
        with torch.autocast("cuda", cache_enabled=False):  # the cache is emptied in an order of addresses
            logits = model(ids)
            loss = F.cross_entropy(logits, ids.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        del logits, loss
    model.eval()
    with torch.inference_mode():
        model(ids)
    show(requests())
"""


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
def test_memory_requests_stay_the_same(run, reentrant, foreach):
    script = TRAINING.replace("REENTRANT", str(reentrant)).replace("FOREACH", str(foreach))
    alone = run(script, installed=False)
    assert len(alone[0]) > 1000
    assert run(script) == alone


def test_a_grad_scaler_takes_unknown_gradients_for_finite(run):
    assert (
        run("""
        model = torch.nn.Linear(1024, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda"):
                loss = model(torch.randn(512, 1024, device=cuda)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            show(scaler.get_scale(), len(optimizer.state))
    """)
        == [65536.0, 2] * 3
    )


def test_no_tensor_is_kept_alive(run):
    assert run("""
        torch.cuda.memory._record_memory_history(context=None)
        x = torch.arange(1000, device=cuda)
        y = x[x > 5] + 1
        z = torch.unique(y)
        y[0] = 3
        try:
            x + torch.arange(3, device=cuda)
        except RuntimeError:
            pass
        del x, y, z
        show(torch.cuda.memory_allocated())
    """) == [0]


def test_memory_that_the_backward_pass_wrote_is_not_known(run):
    assert run("""
        import torch.nn.functional as F
        kept = [torch.arange(256, device=cuda) for _ in range(40)]
        step = torch.zeros((), dtype=torch.int64, device=cuda)
        weight = torch.nn.Parameter(torch.randn(512, 512, device=cuda))
        bias = torch.nn.Parameter(torch.zeros(512, device=cuda))
        del kept
        for _ in range(2):
            F.linear(torch.randn(4, 512, device=cuda), weight, bias).sum().backward()
            show(value(bias.grad), bias.grad.sum().item())
            bias.grad.zero_()
            step += 1
            show(value(bias.grad), value(step), step)
    """) == [0, 0.0, 1, 1, 1, 0, 0.0, 1, 1, 2]


def test_recomputation_in_the_backward_pass_has_values(run):
    assert run("""
        from torch import nn
        from torch.utils.checkpoint import checkpoint
        seen = []
        norm = nn.BatchNorm1d(4).cuda()
        def block(x):
            seen.append((torch.arange(4, device=cuda) > 1).sum().item())
            return norm(x)
        x = torch.ones(3, 4, device=cuda, requires_grad=True)
        for reentrant in (False, True):
            checkpoint(block, x, use_reentrant=reentrant).sum().backward()
        show(seen, norm.num_batches_tracked, value(norm.num_batches_tracked))
    """) == [[2, 2, 2, 2], 4, 1]


def test_a_capture_only_forgets(run):
    assert run("""
        x, z = torch.arange(4, device=cuda), torch.ones(2, dtype=torch.int64, device=cuda)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
            z.add_(1)
        graph.replay()
        show(value(x), value(y), value(z), x + 1)
    """) == [1, 0, 0, [1, 2, 3, 4]]


def test_errors_of_operators_pass_unchanged(run):
    script = """
        for wrong in (
            lambda: torch.arange(3, device=cuda) + torch.arange(4, device=cuda),
            lambda: torch.ones(2, 2, device=cuda) @ torch.ones(3, 3, device=cuda),
            lambda: torch.zeros(1 << 42, dtype=torch.uint8, device=cuda),
            lambda: torch.arange(3, device=cuda).index_select(3, torch.tensor([0], device=cuda)),
            lambda: torch.ones(2, device=cuda).to("nowhere"),
        ):
            try:
                wrong()
            except Exception as error:
                show(type(error).__name__, str(error).split(". GPU")[0])
    """
    assert run(script) == run(script, installed=False)


def test_failures_of_our_own_do_not_reach_the_program(run):
    assert run("""
        from oomph.emulation import counts, handlers
        x, ones = torch.arange(4, device=cuda), torch.ones(2, dtype=torch.int64, device=cuda)
        def broken(*args, **kwargs):
            raise ZeroDivisionError
        handlers.twin = broken
        torch.cuda.memory._record_memory_history(context=None)
        y = x + 1
        ones.add_(1)
        z = x.nonzero()
        show(value(x), value(y), value(ones))
        show([action for action, _ in requests()].count("alloc") < 8)
    """) == [1, 0, 0, True]


def test_other_kinds_of_tensors_work_as_before(run):
    script = """
        import warnings
        warnings.simplefilter("ignore")
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils._python_dispatch import TorchDispatchMode
        x = torch.arange(6, device=cuda).reshape(2, 3)
        show(list(torch.vmap(lambda row: row.sum() + 1)(x).shape))
        show(list(torch.func.jacrev(torch.sin)(torch.ones(3, device=cuda)).shape))
        show(list(torch.func.hessian(lambda x: (x**3).sum())(torch.ones(3, device=cuda)).shape))
        with FakeTensorMode():
            show(list((torch.empty(4, 4, device=cuda) @ torch.empty(4, 4, device=cuda) + 1).shape))
        show(list((torch.empty(3, device="meta") + 1).shape))
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]], device=cuda), torch.ones(2, device=cuda), (2, 2))
        show(list(sparse.to_dense().shape), list((sparse * 2).shape), list(torch.eye(3, device=cuda).to_sparse_csr().shape))
        for layout in (torch.strided, torch.jagged):
            nested = torch.nested.nested_tensor([torch.ones(n, 3, device=cuda) for n in (2, 4)], layout=layout)
            show(list((nested + 1).to_padded_tensor(0.0).shape))
        show(list(torch.quantize_per_tensor(torch.ones(4, device=cuda), 0.1, 0, torch.qint8).dequantize().shape))
        class Logged(torch.Tensor):
            calls = 0
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                cls.calls += 1
                return super().__torch_function__(function, types, args, kwargs or {})
        y = torch.arange(3, device=cuda).as_subclass(Logged) + 1
        show(type(y).__name__, Logged.calls)
        seen = []
        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))
        with Mode():
            torch.arange(3, device=cuda) + 1
        show(seen)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).cuda()
        torch.compile(lambda x: model(x * 2 + 1).sum(), backend="aot_eager")(torch.ones(3, 4, device=cuda)).backward()
        show(list(model[0].weight.grad.shape))
        compiled = torch.compile(lambda x: x[x > 1] + 1, backend="eager")
        show(compiled(torch.arange(5, device=cuda)).dim())
        torch.set_default_device("cuda")
        show(str((torch.arange(4) + torch.ones(4)).device))
    """
    assert run(script) == run(script, installed=False)


def test_values_reach_through_modes_compiled_code_and_threads(run):
    assert run("""
        import threading
        from torch.utils._python_dispatch import TorchDispatchMode
        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return function(*args, **(kwargs or {}))
        x = torch.arange(3, device=cuda)
        with Mode():
            y = x + 1
        show(y)
        show(torch.compile(lambda x: x[x > 1] + 1, backend="eager")(torch.arange(5, device=cuda)))
        thread = threading.Thread(target=lambda: show(torch.arange(3, device=cuda) * 2))
        thread.start()
        thread.join()
        with torch.inference_mode():
            show(torch.arange(3, device=cuda).nonzero())
        show(torch.vmap(lambda row: row.sum() + 1)(torch.arange(6, device=cuda).reshape(2, 3)))
    """) == [[1, 2, 3], [3, 4, 5], [0, 2, 4], [[1], [2]], [4, 13]]


def test_operators_of_others_give_and_leave_unknown_values(run):
    assert run("""
        @torch.library.custom_op("oomph_test::fill", mutates_args={"x"})
        def fill(x: torch.Tensor) -> None:
            pass

        x, y = torch.arange(3, device=cuda), torch.arange(3, device=cuda)
        fill(x)
        show(value(x), value(y))
    """) == [0, 1]
