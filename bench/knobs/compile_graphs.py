"""CUDA graphs of a compiled model keep their memory from everything else. Setting: `mode="default"`."""

import sys

import torch

on = sys.argv[1:] == ["on"]
layers = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(16)]).cuda()
model = torch.compile(layers, mode="default" if on else "reduce-overhead")
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for step in range(8):
    model(torch.randn(8192, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        with torch.no_grad():
            scores = [layers[0](torch.randn(8192, 2048, device="cuda")) for _ in range(12)]
            del scores
