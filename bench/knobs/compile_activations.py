"""A compiled model in training. Setting: `torch._functorch.config.activation_memory_budget = 0.5`."""

import sys

import torch
import torch._functorch.config

on = sys.argv[1:] == ["on"]
if on:
    torch._functorch.config.activation_memory_budget = 0.5


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(1024)
        self.up, self.down = torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


layers = torch.nn.Sequential(*[Block() for _ in range(6)]).cuda()
model = torch.compile(layers)
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(4096, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
