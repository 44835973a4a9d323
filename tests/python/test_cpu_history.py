"""The history of CPU tensors: PyTorch's snapshot format, from a machine without a GPU."""

import copy
import gc
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode
from torch.utils.data import DataLoader, TensorDataset

from conftest import OOMPH
from oomph.recording.cpu_history import CpuHistory

KIB = 1024
MIB = 1024 * KIB


class Recorded:
    """A history that is on, and the questions that the tests ask."""

    def __init__(self) -> None:
        self.history = CpuHistory(100_000)

    @property
    def allocated(self) -> int:
        return self.history.counters()[0]["allocated"]

    def events(self) -> list[dict]:
        return self.history.snapshot()["device_traces"][0]

    def actions(self) -> list[tuple[str, int]]:
        return [(event["action"], event["size"]) for event in self.events()]

    def growth(self, body: Callable[[], object]) -> int:
        """Bytes that stay after a call."""
        before = self.allocated
        body()
        return self.allocated - before


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    recorded.history.start()
    yield recorded
    recorded.history.stop()
    assert torch._C._len_torch_dispatch_stack() == 0


def check_consistent(history: CpuHistory) -> None:
    """The segments are what the events leave alive, and no two live blocks share an address."""
    snapshot = history.snapshot()
    segments = {segment["address"]: segment["total_size"] for segment in snapshot["segments"]}
    assert sum(segments.values()) == history.counters()[0]["allocated"]
    live: dict[int, int] = {}
    born = set()
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
            born.add(event["addr"])
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"], event["size"]) == event["size"]
    assert live.items() <= segments.items()


def test_a_tensor_is_a_segment_with_one_block_from_its_birth_to_its_death(recorded):
    address = torch.empty(1024, dtype=torch.uint8).data_ptr()
    assert recorded.actions() == [
        ("segment_alloc", 1024),
        ("alloc", 1024),
        ("free_requested", 1024),
        ("free_completed", 1024),
        ("segment_free", 1024),
    ]
    assert {event["addr"] for event in recorded.events()} == {address}
    assert recorded.history.allocations() == {0: 1}


def test_the_snapshot_has_what_is_alive_and_says_that_it_is_the_cpu(recorded):
    kept = torch.empty(1000, dtype=torch.uint8)
    snapshot = recorded.history.snapshot()
    assert snapshot["oomph"] == {"device": "cpu"}
    [segment] = [segment for segment in snapshot["segments"] if segment["address"] == kept.data_ptr()]
    assert (segment["total_size"], segment["blocks"][0]["size"]) == (1000, 1000)
    assert segment["blocks"][0]["frames"][0]["filename"] == __file__
    check_consistent(recorded.history)


def test_views_share_the_block_and_keep_it_alive(recorded):
    kept = torch.empty(MIB, dtype=torch.uint8)
    view = kept[10:20].view(2, 5)
    assert recorded.history.allocations() == {0: 1}
    del kept
    assert recorded.actions()[-1] == ("alloc", MIB)
    del view
    assert recorded.actions()[-1] == ("segment_free", MIB)


def test_tensors_from_before_have_no_events_until_they_die():
    before = torch.empty(MIB, dtype=torch.uint8)
    recorded = Recorded()
    recorded.history.start()
    try:
        assert recorded.allocated >= MIB and recorded.events() == []
        before.add_(1)
        assert recorded.events() == []
        check_consistent(recorded.history)
        del before
        assert recorded.actions()[0] == ("free_requested", MIB)
    finally:
        recorded.history.stop()


def test_stacks_begin_at_the_users_line_without_frames_of_ours_or_of_the_dispatch(recorded):
    line = sys._getframe().f_lineno + 1
    kept = torch.nn.functional.relu(torch.ones(1000))
    *_, alloc = [event for event in recorded.events() if event["action"] == "alloc"]
    names = [frame["name"] for frame in alloc["frames"]]
    assert names[:2] == ["relu", "test_stacks_begin_at_the_users_line_without_frames_of_ours_or_of_the_dispatch"]
    assert alloc["frames"][1]["line"] == line
    files = {frame["filename"] for frame in alloc["frames"]}
    assert not [name for name in files if "/oomph/recording/" in name or name.endswith("torch/_ops.py")]
    del kept


def test_equal_stacks_are_one_list_and_frees_have_none(recorded):
    kept = [torch.ones(10) for _ in range(5)]
    stacks = {id(event["frames"]) for event in recorded.events() if event["action"] == "alloc"}
    assert len(stacks) == 1
    kept.clear()
    assert not any("frames" in event for event in recorded.events() if "free" in event["action"])


def test_marks_stand_in_later_events(recorded):
    recorded.history.mark("forward Net.fc")
    kept = torch.ones(10)
    recorded.history.mark("")
    del kept
    assert [event["user_metadata"] for event in recorded.events()] == ["forward Net.fc"] * 2 + [""] * 3


def test_the_report_has_the_historys_own_numbers(recorded, tmp_path: pathlib.Path):
    model = Net()
    kept = [model(torch.randn(32, 64)) for _ in range(5)]
    kept.pop().backward()
    file = tmp_path / "cpu.pickle"
    file.write_bytes(pickle.dumps(recorded.history.snapshot(), protocol=4))
    done = subprocess.run([OOMPH, "report", "--json", str(file)], capture_output=True, text=True)
    [device] = json.loads(done.stdout)["inputs"][0]["devices"]
    for counted in (device["allocated"], device["reserved"]):
        assert (counted["peak"], counted["end"]) == (recorded.history.peak(), recorded.allocated)


def test_the_ring_is_bounded_and_its_end_is_what_is_alive():
    history = CpuHistory(50)
    history.start()
    try:
        kept = [torch.ones(100 + n) for n in range(60)]
        del kept[::2]
        assert len(history.snapshot()["device_traces"][0]) <= 50
        check_consistent(history)
        assert history.allocations() == {0: 60}
    finally:
        history.stop()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch).square().mean()


def steady(recorded: Recorded, step: Callable[[], object], warmup: int = 2) -> None:
    """After the first steps, memory at the end of each is the same."""
    for _ in range(warmup):
        step()
    assert [recorded.growth(step) for _ in range(3)] == [0, 0, 0]
    check_consistent(recorded.history)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_training_loop_is_flat_with_its_gradients_and_states(recorded, optimizer):
    model = Net()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.randn(32, 64)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    steady(recorded, step)
    states = {id(state): state.nbytes for states in optimizer.state.values() for state in states.values()}
    assert recorded.allocated - sum(states.values()) - 2 * weights < 4 * KIB


def test_kept_losses_keep_their_graphs_and_losses_after_backward_keep_four_bytes(recorded):
    model = Net()
    kept = []
    batch = torch.randn(32, 64)

    def forward() -> None:
        kept.append(model(batch))

    def backward() -> None:
        kept.append(model(batch))
        kept[-1].backward()
        model.zero_grad(set_to_none=False)

    backward()
    # relu's result, which is saved for the backward of relu and of the second layer; the last layer's; square's is not
    graph = 4 * (32 * 256 + 32 * 8 + 1)
    assert [recorded.growth(backward) for _ in range(3)] == [4] * 3
    growth = [recorded.growth(forward) for _ in range(3)]
    assert growth == [growth[0]] * 3 and growth[0] >= graph
    before = recorded.allocated
    kept.clear()
    assert before - recorded.allocated == 3 * growth[0] + 4 * 4


def test_gradients_are_not_copied_because_we_look(recorded):
    """Autograd takes a gradient over if nobody else holds it."""
    weight = torch.randn(1000, requires_grad=True)
    count = recorded.history.allocations()[0]
    (weight * 2).sum().backward()
    names = [event for event in recorded.events()[2 * count :] if event["action"] == "alloc" and event["size"] == 4000]
    assert len(names) == 2  # the product, the gradient


def test_backward_is_attributed_to_the_line_that_called_it(recorded):
    loss = Net()(torch.randn(4, 64))
    count = recorded.history.allocations()[0]
    line = sys._getframe().f_lineno + 1
    loss.backward()
    allocs = [event for event in recorded.events() if event["action"] == "alloc"][count:]
    assert allocs and all(line in [frame["line"] for frame in event["frames"]] for event in allocs)


def test_resized_storages_change_their_block(recorded):
    kept = torch.empty(1000, dtype=torch.uint8)
    assert recorded.growth(lambda: kept.untyped_storage().resize_(0)) == -1000
    assert recorded.growth(lambda: kept.untyped_storage().resize_(3000)) == 3000
    assert recorded.growth(lambda: kept.resize_(8000)) == 5000
    assert recorded.growth(lambda: kept.set_(torch.empty(10, dtype=torch.uint8))) == -7990
    assert recorded.growth(lambda: kept.share_memory_()) == 0
    kept.add_(1)
    check_consistent(recorded.history)


def test_foreign_memory_is_counted_once(recorded):
    array = numpy.ones(1000, dtype=numpy.uint8)
    before = recorded.allocated
    first, second = torch.from_numpy(array), torch.from_numpy(array[500:])
    first.add_(1), second.add_(1)
    assert recorded.allocated - before == 1000
    del first
    assert recorded.growth(lambda: second.add_(1)) == 0  # noqa: F821 (deleted below)
    del second
    assert recorded.allocated == before
    ours = torch.empty(1000, dtype=torch.uint8)
    assert recorded.growth(lambda: torch.from_numpy(ours.numpy()).add_(1)) == 0
    check_consistent(recorded.history)


def test_saving_loading_and_copying(recorded):
    model = Net()
    size = sum(parameter.nbytes for parameter in model.parameters())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = []
    assert recorded.growth(lambda: loaded.append(torch.load(file))) == size
    copied = []
    assert recorded.growth(lambda: copied.append(copy.deepcopy(model))) == size
    assert recorded.growth(lambda: copied[0].to(torch.float64)) == size
    assert recorded.growth(copied.clear) == -2 * size


def test_autocast_inference_mode_and_no_grad(recorded):
    model = Net()

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.randn(8, 64)).backward()
        with torch.inference_mode():
            model(torch.randn(8, 64))
        with torch.no_grad():
            model(torch.randn(8, 64))

    steady(recorded, step)


def test_vmap_and_grad_transforms(recorded):
    weight = torch.randn(16, 16)

    def loss(weight: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return (weight @ row).square().sum()

    def step() -> None:
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, torch.randn(4, 16))
        assert gradients.shape == (4, 16, 16)
        torch.func.jacrev(loss)(weight, torch.randn(16))

    steady(recorded, step)


def test_sparse_tensors_are_their_parts(recorded):
    kept = []
    dense = torch.eye(100)
    assert recorded.growth(lambda: kept.append(dense.to_sparse())) == 2 * 100 * 8 + 100 * 4
    assert recorded.growth(lambda: kept.append(dense.to_sparse_csr())) > 0
    assert torch.equal(kept[0].to_dense(), kept[1].to_dense())
    check_consistent(recorded.history)


def test_fake_and_meta_tensors_have_no_memory(recorded):
    def body() -> None:
        with FakeTensorMode() as mode:
            fake = Net()(torch.empty(8, 64))
            assert fake.device.type == "cpu"
        mode.from_tensor(torch.ones(10)).add(1)
        Net().to("meta")(torch.empty(8, 64, device="meta"))

    body()
    gc.collect()
    before = recorded.allocated
    body()
    gc.collect()
    assert recorded.allocated == before


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_users_dispatch_mode_sees_each_operator_once(recorded):
    with Counting() as mode:
        kept = torch.ones(10).add(1)
    assert mode.names == ["aten.ones.default", "aten.add.Tensor"]
    assert recorded.history.allocations() == {0: 2}
    with Counting() as mode:
        recorded.history.stop()  # from below another mode
        kept = kept.add(1)
        assert mode.names == ["aten.add.Tensor"] and torch._C._len_torch_dispatch_stack() == 1
    assert recorded.history.allocations() == {0: 2}
    assert torch._C._len_torch_dispatch_stack() == 0 and not is_in_torch_dispatch_mode()


class Wrapper(torch.Tensor):
    """A subclass that holds another tensor, as quantized and distributed ones do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        unwrapped = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
        return Wrapper(func(*unwrapped, **(kwargs or {})))


def test_what_a_tensor_subclass_does_inside_is_seen(recorded):
    wrapped = Wrapper(torch.ones(1000))
    kept = []
    assert recorded.growth(lambda: kept.append(wrapped + 1)) == 4000


def test_higher_order_operators_work(recorded):
    out = torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(3),))
    assert out.tolist() == [2, 2, 2]


def test_compiled_functions_still_work(recorded):
    @torch.compile(backend="eager")
    def function(batch: torch.Tensor) -> torch.Tensor:
        return (batch.sin() + 1).sum()

    kept = torch.ones(100, requires_grad=True)
    function(kept).backward()
    assert torch.allclose(kept.grad, torch.cos(torch.ones(100)))
    assert recorded.history.allocations()[0] > 3


def test_data_loader_workers_are_not_recorded_and_their_batches_are(recorded):
    data = TensorDataset(torch.arange(64.0).reshape(16, 4))
    kept = [batch.add(0) for [batch] in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")]
    assert sum(batch.sum() for batch in kept) == 64 * 63 / 2
    check_consistent(recorded.history)
    assert sum(event["size"] == 64 for event in recorded.events() if event["action"] == "alloc") >= 8


def test_a_forked_process_runs_without_the_history(recorded):
    child = os.fork()
    if child == 0:
        count = recorded.history.allocations()
        torch.ones(10)
        depth = torch._C._len_torch_dispatch_stack()
        os._exit(2 * depth + (recorded.history.allocations() != count))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert recorded.growth(lambda: torch.ones(10)) == 0


def test_threads_work_and_their_tensors_are_met_when_used(recorded):
    made: list[torch.Tensor] = []

    def work() -> None:
        for _ in range(50):
            made.append(torch.ones(250, requires_grad=True).mul(1).detach())
            made.pop(0) if len(made) > 5 else None

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        torch.ones(100).add(1)
    for thread in threads:
        thread.join()
    assert recorded.growth(lambda: [tensor.add_(1) for tensor in made]) == 1000 * len(made)
    check_consistent(recorded.history)


def test_a_failure_of_ours_ends_the_recording_and_the_operator_has_run_once(recorded, capfd, monkeypatch):
    def broken(*_args: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(recorded.history._storages, "meet", broken)
    kept = torch.zeros(3)
    kept.add_(1)
    assert kept.tolist() == [1, 1, 1]
    said = capfd.readouterr().err
    assert said == "oomph: stopped recording CPU memory: ZeroDivisionError: broken\n"


def test_errors_of_operators_reach_the_program(recorded):
    with pytest.raises(RuntimeError, match="size of tensor"):
        torch.ones(3) + torch.ones(4)
    assert recorded.growth(lambda: torch.ones(3)) == 0


def test_a_stopped_history_can_start_anew():
    history = CpuHistory(1000)
    history.start()
    kept = torch.ones(10)
    history.stop()
    del kept
    assert history.counters()[0]["allocated"] >= 40  # as it was
    history.start()
    assert history.snapshot()["device_traces"] == [[]]
    history.stop()


def test_nothing_is_said_at_the_end_of_a_process(tmp_path: pathlib.Path):
    program = """
        import torch
        from oomph.recording.cpu_history import CpuHistory
        history = CpuHistory(1000)
        history.start()
        kept = torch.ones(10).add(1)
        class Cycle: pass
        cycle = Cycle()
        cycle.self, cycle.tensor = cycle, torch.ones(5)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
