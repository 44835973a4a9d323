"""Patches of the program's own on Module.__call__, _call_impl and Optimizer.step, set and taken back."""

PROGRAM = {
    "variants": {
        "call": {"arguments": ["__call__"]},
        "impl": {"arguments": ["_call_impl"]},
        "impl-early": {"arguments": ["_call_impl", "early"]},
        "step": {"arguments": ["step"]},
    },
}

import functools
import sys

import probe
import torch
from torch import nn

name = sys.argv[1]
owner = torch.optim.SGD if name == "step" else nn.Module
original = getattr(owner, name)
seen = []


@functools.wraps(original)
def patched(self, *args, **kwargs):
    seen.append(type(self).__name__)
    return original(self, *args, **kwargs)


if "early" in sys.argv:  # before CUDA is in use
    setattr(owner, name, patched)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    optimizer.step()


train()
setattr(owner, name, patched)
train()
print(seen, getattr(owner, name) is patched)
setattr(owner, name, original)
seen.clear()
train()
print(seen, getattr(owner, name) is original)
# And on one object alone.
model[0].forward = lambda x: x * 2
print(model(torch.ones(1, 8, device="cuda")).shape, original.__qualname__, original.__module__)
probe.done()
