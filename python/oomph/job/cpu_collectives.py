"""Collectives of tensors on the CPU, among the ranks of a job that run.

Training code sends configurations, flags and sizes this way. Each rank that runs puts its tensors into the store of the group;
those that do not run count as sending what their stand-ins send. Tensors above a size are not sent: they are weights or
activations, whose values matter to nobody here.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .plan import JobPlan

MAX_SENT_BYTES = 1 << 22


@dataclass
class _Group:
    store: Any
    ranks: list[int]
    own: int
    plan: JobPlan
    rounds: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    stand_ins: list[int] = field(init=False)
    """For each rank, the one that it gets its messages from."""

    def __post_init__(self) -> None:
        self.stand_ins = self.plan.stand_ins(self.ranks)

    def exchange(self, tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """The tensors of every rank; those of this rank in place of large ones."""
        self.rounds += 1
        if sum(tensor.nbytes for tensor in tensors) <= MAX_SENT_BYTES:
            self.store.set(f"oomph/{self.rounds}/{self.own}", b"".join(_bytes(tensor) for tensor in tensors))
            found = {index: self._read(f"oomph/{self.rounds}/{index}", tensors) for index in set(self.stand_ins)}
        else:
            own = [tensor.clone() for tensor in tensors]
            found = dict.fromkeys(self.stand_ins, own)
        return [found[index] for index in self.stand_ins]

    def _read(self, key: str, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        data, parts, at = bytes(self.store.get(key)), [], 0
        for tensor in like:
            piece = data[at : at + tensor.nbytes]
            at += tensor.nbytes
            parts.append(_tensor(piece, tensor))
        return parts

    def send(self, to: int, tensors: Sequence[torch.Tensor]) -> None:
        if not self.plan.runs(self.ranks[to]):
            return
        number = self.sent[to] = self.sent.get(to, 0) + 1
        self.store.set(f"oomph/{self.own}-{to}/{number}", b"".join(_bytes(tensor) for tensor in tensors))

    def receive(self, source: int, tensors: Sequence[torch.Tensor]) -> None:
        if not self.plan.runs(self.ranks[source]):
            return
        number = self.received[source] = self.received.get(source, 0) + 1
        for tensor, found in zip(tensors, self._read(f"oomph/{source}-{self.own}/{number}", tensors)):
            tensor.copy_(found)


_groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()


def register(group: Any, store: Any, ranks: list[int], plan: JobPlan) -> None:
    _groups[group] = _Group(store, ranks, int(group.rank()), plan)


def install(process_group: Any) -> None:
    """Replaces the methods of `ProcessGroup` that PyTorch's own functions call, for tensors on the CPU."""
    for name, collective in _COLLECTIVES.items():
        _replace(process_group, name, collective)


def _replace(process_group: Any, name: str, collective: Callable[..., None]) -> None:
    original = getattr(process_group, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        group = _groups.get(self)
        if group is None or (args and not _is_on_cpu(args[0])) or (not args and _has_nccl(self)):
            return original(self, *args, **kwargs)
        collective(group, *args, **kwargs)
        return _done()

    setattr(process_group, name, method)


def _is_on_cpu(value: Any) -> bool:
    while isinstance(value, (list, tuple)):
        if not value:
            return False
        value = value[0]
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu"
    # The options of a barrier.
    device = getattr(value, "device", None)
    return device is not None and torch.device(device).type == "cpu"


def _has_nccl(group: Any) -> bool:
    return "cuda" in {device.type for device in group._device_types}


def _done() -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(None)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future)


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _tensor(data: bytes, like: torch.Tensor) -> torch.Tensor:
    if like.numel() == 0 or len(data) != like.nbytes:
        return like.detach().clone()
    return torch.frombuffer(bytearray(data), dtype=like.dtype).reshape(like.shape)


def _reduced(tensors: Sequence[torch.Tensor], operation: Any) -> torch.Tensor:
    kind = str(getattr(operation, "op", operation)).rsplit(".", 1)[-1].rstrip(">").split(":")[0].upper()
    stacked = torch.stack([tensor.reshape(tensors[0].shape) for tensor in tensors])
    if kind == "AVG":
        return (stacked.sum(0) / len(tensors)).to(tensors[0].dtype)
    if kind == "MAX":
        return stacked.amax(0)
    if kind == "MIN":
        return stacked.amin(0)
    if kind == "PRODUCT":
        return stacked.prod(0).to(tensors[0].dtype)
    if kind in ("BAND", "BOR", "BXOR"):
        join = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[kind]
        return functools.reduce(join, stacked.unbind(0))
    return stacked.sum(0).to(tensors[0].dtype)


def _list(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _option(options: tuple[Any, ...], named: dict[str, Any], attribute: str, name: str, default: Any) -> Any:
    """An option, of an options object or passed by itself."""
    for value in options:
        if hasattr(value, attribute):
            return getattr(value, attribute)
    if name in named:
        return named[name]
    return options[0] if options and not hasattr(options[0], "timeout") else default


def _allreduce(group: _Group, tensors: Any, *options: Any, **named: Any) -> None:
    tensors = _list(tensors)
    operation = _option(options, named, "reduceOp", "op", "SUM")
    for index, parts in enumerate(zip(*group.exchange(tensors))):
        tensors[index].copy_(_reduced(parts, operation))


def _reduce(group: _Group, tensors: Any, *options: Any, **named: Any) -> None:
    tensors = _list(tensors)
    parts = group.exchange(tensors)
    if group.own == int(_option(options, named, "rootRank", "root", 0)):
        operation = next((value.reduceOp for value in options if hasattr(value, "reduceOp")), named.get("op", "SUM"))
        for index, found in enumerate(zip(*parts)):
            tensors[index].copy_(_reduced(found, operation))


def _broadcast(group: _Group, tensors: Any, *options: Any, **named: Any) -> None:
    tensors = _list(tensors)
    root = int(_option(options, named, "rootRank", "root", 0))
    for tensor, found in zip(tensors, group.exchange(tensors)[root]):
        tensor.copy_(found)


def _allgather(group: _Group, outputs: Any, inputs: Any, *_: Any, **__: Any) -> None:
    outputs, inputs = list(outputs), _list(inputs)
    # One list of outputs for each input; a single list for a single input.
    lists = outputs if outputs and not isinstance(outputs[0], torch.Tensor) else [outputs]
    for rank, found in enumerate(group.exchange(inputs)):
        for outputs_of_input, tensor in zip(lists, found):
            outputs_of_input[rank].copy_(tensor.reshape(outputs_of_input[rank].shape))


def _allgather_base(group: _Group, output: torch.Tensor, own: torch.Tensor, *_: Any, **__: Any) -> None:
    found = [tensors[0].reshape(-1) for tensors in group.exchange([own])]
    output.copy_(torch.cat(found).reshape(output.shape))


def _gather(group: _Group, outputs: Any, inputs: Any, *options: Any, **named: Any) -> None:
    found = group.exchange(_list(inputs))
    if group.own == int(_option(options, named, "rootRank", "root", 0)):
        lists = outputs if outputs and not isinstance(outputs[0], torch.Tensor) else [outputs]
        for rank, tensors in enumerate(found):
            lists[0][rank].copy_(tensors[0])


def _scatter(group: _Group, outputs: Any, inputs: Any, *options: Any, **named: Any) -> None:
    root = int(_option(options, named, "rootRank", "root", 0))
    outputs = _list(outputs)
    lists = list(inputs) if inputs and not isinstance(inputs[0], torch.Tensor) else [list(inputs)]
    own = [tensor.reshape(-1) for tensor in lists[0]] if group.own == root and lists and lists[0] else []
    whole = torch.cat(own) if own else outputs[0].reshape(-1).repeat(len(group.ranks))
    found = group.exchange([whole])[root][0]
    outputs[0].copy_(found.reshape(len(group.ranks), -1)[group.own].reshape(outputs[0].shape))


def _reduce_scatter(group: _Group, outputs: Any, inputs: Any, *options: Any, **named: Any) -> None:
    outputs = _list(outputs)
    lists = list(inputs) if inputs and not isinstance(inputs[0], torch.Tensor) else [list(inputs)]
    operation = _option(options, named, "reduceOp", "op", "SUM")
    found = group.exchange([torch.cat([tensor.reshape(-1) for tensor in lists[0]])])
    total = _reduced([tensors[0] for tensors in found], operation)
    outputs[0].copy_(total.reshape(len(group.ranks), -1)[group.own].reshape(outputs[0].shape))


def _reduce_scatter_base(group: _Group, output: torch.Tensor, own: torch.Tensor, *options: Any, **named: Any) -> None:
    operation = _option(options, named, "reduceOp", "op", "SUM")
    total = _reduced([tensors[0] for tensors in group.exchange([own])], operation)
    output.copy_(total.reshape(len(group.ranks), -1)[group.own].reshape(output.shape))


def _alltoall_base(group: _Group, output: torch.Tensor, own: torch.Tensor, out_sizes: Any, in_sizes: Any, *_: Any) -> None:
    size = len(group.ranks)
    sizes = list(in_sizes) or [own.shape[0] // size] * size
    header = torch.tensor(sizes, dtype=torch.int64)
    pieces = []
    for tensors in zip(group.exchange([header]), group.exchange([own])):
        (lengths,), (whole,) = tensors
        pieces.append(
            whole.split([int(length) for length in lengths])[group.own] if whole.shape[0] == int(lengths.sum()) else whole
        )
    joined = torch.cat(pieces)
    if joined.shape == output.shape:
        output.copy_(joined)


def _alltoall(group: _Group, outputs: Any, inputs: Any, *_: Any, **__: Any) -> None:
    for output, tensors in zip(_list(outputs), group.exchange(_list(inputs))):
        if tensors[group.own].shape == output.shape:
            output.copy_(tensors[group.own])


def _barrier(group: _Group, *_: Any, **__: Any) -> None:
    group.exchange([])


def _send(group: _Group, tensors: Any, to: int, *_: Any, **__: Any) -> None:
    group.send(int(to), _list(tensors))


def _recv(group: _Group, tensors: Any, source: int, *_: Any, **__: Any) -> None:
    group.receive(int(source), _list(tensors))


_COLLECTIVES: dict[str, Callable[..., None]] = {
    "allreduce": _allreduce,
    "allreduce_coalesced": _allreduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "allgather_coalesced": _allgather,
    "_allgather_base": _allgather_base,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "_reduce_scatter_base": _reduce_scatter_base,
    "alltoall": _alltoall,
    "alltoall_base": _alltoall_base,
    "barrier": _barrier,
    "monitored_barrier": _barrier,
    "send": _send,
    "recv": _recv,
}
