"""ZeRO keeps the optimizer's state and the float32 copy of the parameters on the GPU. Setting: `offload_optimizer`."""

import os
import sys

import deepspeed
import torch

on = sys.argv[1:] == ["on"]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29572", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
layers = [torch.nn.Linear(2048, 2048) for _ in range(16)]
model = torch.nn.Sequential(*layers)
zero = {"stage": 2, "reduce_bucket_size": 4_000_000} | ({"offload_optimizer": {"device": "cpu"}} if on else {})
config = {
    "train_micro_batch_size_per_gpu": 32,
    "bf16": {"enabled": True},
    "zero_optimization": zero,
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for _ in range(6):
    loss = engine(torch.randn(32, 2048, device="cuda", dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
