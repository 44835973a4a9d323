"""A Llama-like decoder, split over the ranks of a job in the ways that PyTorch offers: `--parallel`, one or several joined by `+`.

It makes the tokens itself and prints the peaks of its rank. Under PyTorch's fake process group (`--fake`), one real GPU runs
any one rank of a job of any size.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

arguments = argparse.ArgumentParser()
arguments.add_argument("--parallel", default="fsdp2", help="ddp, fsdp1, fsdp2, hsdp, tp, sp, pp, cp, ep, zero1, deepspeed")
arguments.add_argument("--tp", type=int, default=2)
arguments.add_argument("--pp", type=int, default=2)
arguments.add_argument("--schedule", default="1f1b", help="1f1b, gpipe, interleaved, zero-bubble")
arguments.add_argument("--dim", type=int, default=512)
arguments.add_argument("--layers", type=int, default=4)
arguments.add_argument("--heads", type=int, default=8)
arguments.add_argument("--hidden", type=int, default=0)
arguments.add_argument("--vocabulary", type=int, default=8192)
arguments.add_argument("--tokens", type=int, default=512)
arguments.add_argument("--batch", type=int, default=4)
arguments.add_argument("--steps", type=int, default=4)
arguments.add_argument("--dtype", default="bfloat16")
arguments.add_argument("--zero", type=int, default=3, help="stage of DeepSpeed's ZeRO")
arguments.add_argument("--offload", action="store_true", help="DeepSpeed keeps optimizer state on the host")
arguments.add_argument("--save", metavar="DIR", help="write and read a checkpoint with torch.distributed.checkpoint at the end")
arguments.add_argument("--local_rank", type=int, default=0, help="set by DeepSpeed's launcher")
arguments.add_argument("--checkpoint", action="store_true", help="activation checkpointing of each layer")
arguments.add_argument("--fake", action="store_true", help="other ranks are answered by PyTorch's fake process group")
args = arguments.parse_args()

rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
kinds = args.parallel.split("+")
device = torch.device("cuda", 0 if args.fake else int(os.environ.get("LOCAL_RANK", "0")))
torch.cuda.set_device(device)
dtype = getattr(torch, args.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = args.heads
        self.q, self.k, self.v, self.o = (nn.Linear(args.dim, args.dim, bias=False) for _ in range(4))

    def forward(self, x):
        batch, tokens, _ = x.shape
        # The width is that of this rank's heads under tensor parallelism.
        q, k, v = (of(x).view(batch, tokens, -1, args.dim // args.heads).transpose(1, 2) for of in (self.q, self.k, self.v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(found.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        hidden = args.hidden or 4 * args.dim
        self.gate, self.up = nn.Linear(args.dim, hidden, bias=False), nn.Linear(args.dim, hidden, bias=False)
        self.down = nn.Linear(hidden, args.dim, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """One expert on each rank: tokens travel to theirs and back."""

    def __init__(self):
        super().__init__()
        self.expert = FeedForward()

    def forward(self, x):
        from torch.distributed.nn.functional import all_to_all_single

        flat = x.reshape(-1, x.shape[-1]).contiguous()
        there = all_to_all_single(torch.empty_like(flat), flat)
        done = self.expert(there)
        return all_to_all_single(torch.empty_like(done), done.contiguous()).view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(args.dim), nn.RMSNorm(args.dim)
        self.attention = Attention()
        self.ffn = Experts() if "ep" in kinds else FeedForward()

    def body(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))

    def forward(self, x):
        if args.checkpoint:
            return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)


class Model(nn.Module):
    def __init__(self, first=0, last=None):
        super().__init__()
        last = args.layers if last is None else last
        self.embedding = nn.Embedding(args.vocabulary, args.dim) if first == 0 else None
        self.layers = nn.ModuleList(Layer() for _ in range(first, last))
        self.norm = nn.RMSNorm(args.dim) if last == args.layers else None
        self.head = nn.Linear(args.dim, args.vocabulary, bias=False) if last == args.layers else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def made(module):
    """The module on the GPU, without ever being on the host."""
    module = module.to_empty(device=device)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.ones_(parameter)
    return module


def split(model, mesh):
    """Tensor and sequence parallelism."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    is_sequence = "sp" in kinds
    for layer in model.layers:
        plan = {
            **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
            "attention.o": RowwiseParallel(output_layouts=Shard(1) if is_sequence else Replicate()),
            "ffn.gate": ColwiseParallel(),
            "ffn.up": ColwiseParallel(),
            "ffn.down": RowwiseParallel(output_layouts=Shard(1) if is_sequence else Replicate()),
        }
        if is_sequence:
            whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
            plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
            plan |= {"attention": PrepareModuleInput(**whole), "ffn": PrepareModuleInput(**whole)}
        parallelize_module(layer, mesh, plan)
    whole = {}
    if is_sequence:
        whole["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        whole["norm"] = SequenceParallel()
        whole["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    else:
        whole["head"] = ColwiseParallel(output_layouts=Replicate())
    return parallelize_module(model, mesh, {name: style for name, style in whole.items() if getattr(model, name) is not None})


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_pipeline(mesh):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
    from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

    group = mesh["pp"].get_group()
    position, stages = mesh["pp"].get_local_rank(), args.pp
    chunks = 2 if args.schedule in ("interleaved", "zero-bubble") else 1
    total = stages * chunks
    parts = []
    for index in range(position, total, stages):
        with torch.device("meta"):
            part = Model(index * args.layers // total, (index + 1) * args.layers // total).to(dtype)
        if "tp" in kinds:
            part = split(part, mesh["tp"])
        if "fsdp2" in kinds:
            part = sharded(part, mesh["dp"])
        parts.append((index, made(part)))
    shape = (1, args.tokens)
    hidden = torch.empty(*shape, args.dim, dtype=dtype, device="meta")

    def example(index, kind):
        """What stage `index` takes or returns, for one microbatch: without it, stages send each other their shapes."""
        if kind == "input":
            return torch.empty(shape, dtype=torch.long, device="meta") if index == 0 else hidden
        return hidden if index < total - 1 else torch.empty(*shape, args.vocabulary, dtype=dtype, device="meta")

    built = [
        PipelineStage(
            part, index, total, device, group=group, input_args=example(index, "input"), output_args=example(index, "output")
        )
        for index, part in parts
    ]
    schedules = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}
    kind = schedules.get(args.schedule, ScheduleInterleavedZeroBubble)
    schedule = kind(built[0] if chunks == 1 else built, args.batch, loss_fn=loss_of)
    parameters = [parameter for _, part in parts for parameter in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
    for _ in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch, args.tokens), device=device)
        if position == 0 and position == stages - 1:
            schedule.step(tokens, target=tokens)
        elif position == 0:
            schedule.step(tokens)
        elif position == stages - 1:
            schedule.step(target=tokens, losses=[])
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()


def train_deepspeed(mesh):
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": args.batch,
        "bf16": {"enabled": dtype == torch.bfloat16},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": args.zero, "offload_optimizer": {"device": "cpu"} if args.offload else None},
        "zero_force_ds_cpu_optimizer": False,
    }
    if args.zero == 3:
        with deepspeed.zero.Init(config_dict_or_path=config, dtype=dtype):
            model = Model()
    else:
        with torch.device("meta"):
            model = Model().to(dtype)
        model = made(model)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for _ in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch, args.tokens), device=device)
        engine.backward(loss_of(engine(tokens), tokens))
        engine.step()


def train(mesh):
    with torch.device("meta"):
        model = Model().to(dtype)
    if {"tp", "sp"} & set(kinds):
        model = split(model, mesh["tp"])
    if "fsdp2" in kinds:
        model = sharded(model, mesh["dp"])
    if "hsdp" in kinds:
        model = sharded(model, mesh["replicate", "shard"])
    model = made(model)
    if "ddp" in kinds:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device])
    if "fsdp1" in kinds:
        import functools

        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        wraps = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
        model = FullyShardedDataParallel(model, auto_wrap_policy=wraps, device_id=device, use_orig_params=True)
    if "zero1" in kinds:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4)
    else:
        # Under tensor parallelism alone, some parameters are plain tensors, which `foreach` does not mix with the others.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach="tp" not in kinds or "fsdp2" in kinds)
    for _ in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch, args.tokens), device=device)
        if "cp" in kinds:
            from torch.distributed.tensor.experimental import context_parallel

            with context_parallel(mesh["cp"], buffers=[tokens], buffer_seq_dims=[1]):
                loss_of(model(tokens), tokens).backward()
        else:
            loss_of(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    if args.save:
        checkpoint(model, optimizer)


def checkpoint(model, optimizer):
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(parts, checkpoint_id=args.save)
    dcp.load(parts, checkpoint_id=args.save)
    set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])


def mesh_of():
    inner = args.tp if {"tp", "sp"} & set(kinds) else 1
    stages = args.pp if "pp" in kinds else 1
    rest = world // inner // stages
    shape = {"pp": stages, "dp": rest, "tp": inner}
    if "hsdp" in kinds:
        shape = {"replicate": 2, "shard": world // 2}
    if "cp" in kinds:
        shape = {"dp": 1, "cp": world}
    return init_device_mesh("cuda", tuple(shape.values()), mesh_dim_names=tuple(shape))


if args.fake:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
else:
    dist.init_process_group("nccl")
{"pp": train_pipeline, "deepspeed": train_deepspeed}.get(kinds[0], train)(mesh_of())
torch.cuda.synchronize()
print(f"rank {rank}: {torch.cuda.max_memory_allocated()} allocated, {torch.cuda.max_memory_reserved()} reserved")
dist.destroy_process_group()
