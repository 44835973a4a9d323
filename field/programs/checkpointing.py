"""Activation checkpointing, both kinds, with saved-tensor hooks and a custom autograd function."""

PROGRAM = {}

import probe
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


torch.manual_seed(0)
blocks = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)) for _ in range(4))).cuda()
optimizer = torch.optim.Adam(blocks.parameters(), foreach=True)
packed = []
for step in range(3):
    for mode in ("reentrant", "other", "sequential", "hooks"):
        x = torch.ones(32, 64, device="cuda", requires_grad=True)
        if mode == "sequential":
            out = checkpoint_sequential(blocks, 2, x, use_reentrant=False)
        elif mode == "hooks":
            with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.numel()) or t.cpu(), lambda t: t.cuda()):
                out = blocks(x)
        else:
            out = x
            for block in blocks:
                out = checkpoint(block, out, use_reentrant=mode == "reentrant")
        Scale.apply(out, 2.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.tick()
        print(step, mode, torch.cuda.max_memory_allocated(), len(packed))
probe.done()
