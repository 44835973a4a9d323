"""DDP keeps the gradients a second time, in its buckets. Setting: `gradient_as_bucket_view=True`."""

import os
import sys

import torch
import torch.distributed as dist

on = sys.argv[1:] == ["on"]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571", RANK="0", WORLD_SIZE="1")
dist.init_process_group("nccl")
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(16)]).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=on)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(32, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
