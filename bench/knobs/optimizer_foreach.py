"""`torch.optim.AdamW` updates all parameters at once and makes temporaries of their size. Setting: `fused=True`."""

import sys

import torch

on = sys.argv[1:] == ["on"]
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(16)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), **({"fused": True} if on else {}))
for _ in range(6):
    model(torch.randn(32, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
