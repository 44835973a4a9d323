"""torch.compile: recompilations, graph breaks and the backward pass, with and without CUDA graphs."""

PROGRAM = {
    "variants": {
        "default": {"arguments": ["default"]},
        "reduce-overhead": {"arguments": ["reduce-overhead"]},
        "eager": {"arguments": ["default", "aot_eager"]},
    },
    "jitter": {"stderr": True, "memory": True},
}

import sys

import probe
import torch
import torch._dynamo
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


torch.manual_seed(0)
model = Net().cuda()
options = {"backend": sys.argv[2]} if len(sys.argv) > 2 else {"mode": sys.argv[1]}
compiled = torch.compile(model, **options)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    loss = compiled(torch.ones(16, 32, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    probe.tick()
    print(f"{step} {loss.item():.1f}")
counters = torch._dynamo.utils.counters
print(dict(counters["frames"]), sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"])
print(torch._dynamo.explain(model)(torch.ones(16, 32, device="cuda")).graph_count)
probe.done()
