"""ZeRO gathers gradients in a bucket of 500 million elements. Setting: `reduce_bucket_size`."""

import os
import sys

import deepspeed
import torch

on = sys.argv[1:] == ["on"]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29573", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(16)])
config = {
    "train_micro_batch_size_per_gpu": 32,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2} | ({"reduce_bucket_size": 50_000_000} if on else {}),
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for _ in range(6):
    loss = engine(torch.randn(32, 2048, device="cuda", dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
