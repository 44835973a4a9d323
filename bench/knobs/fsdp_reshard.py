"""FSDP2 that keeps the gathered parameters of every layer. Setting: `reshard_after_forward=True`."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

on = sys.argv[1:] == ["on"]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layers = [torch.nn.Linear(2048, 2048, device="cuda") for _ in range(16)]
for layer in layers:
    fully_shard(layer, reshard_after_forward=on)
model = fully_shard(torch.nn.Sequential(*layers), reshard_after_forward=on)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(32, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
