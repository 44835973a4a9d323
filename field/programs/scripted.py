"""torch.jit.script, torch.jit.trace, torch.export and torch.fx on models that were used before."""

PROGRAM = {"jitter": {"stderr": [r"^.*Warning.*\n(  .*\n)?"]}}

import io

import probe
import torch
from torch import fx, nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


model = Net().cuda().eval()
inputs = torch.ones(2, 8, device="cuda")
model(inputs)
scripted = torch.jit.script(model)
print(tuple(scripted(inputs).shape), [name for name, _ in scripted.named_modules()])
traced = torch.jit.trace(model, inputs)
print(tuple(traced(inputs).shape), str(traced.graph).count("prim::CallMethod"))
stored = io.BytesIO()
torch.jit.save(scripted, stored)
stored.seek(0)
print(tuple(torch.jit.load(stored)(inputs).shape))
graph = fx.symbolic_trace(model)
print(graph.code, [(node.op, str(node.target)) for node in graph.graph.nodes])
exported = torch.export.export(model, (inputs,))
print([str(node.target) for node in exported.graph.nodes])
print(tuple(exported.module()(inputs).shape))
probe.done()
