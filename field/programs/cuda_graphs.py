"""CUDA graphs: capture and replay of a whole step, and make_graphed_callables."""

PROGRAM = {}

import probe
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
static = torch.ones(16, 32, device="cuda")
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        model(static).square().mean().backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = model(static).square().mean()
    loss.backward()
    optimizer.step()
for step in range(5):
    static.copy_(torch.full((16, 32), float(step)))
    graph.replay()
    probe.tick()
    print(f"{step} {loss.item():.1f}")
other = nn.Linear(32, 32).cuda()
graphed = torch.cuda.make_graphed_callables(other, (torch.ones(16, 32, device="cuda", requires_grad=True),))
for _ in range(3):
    graphed(torch.ones(16, 32, device="cuda", requires_grad=True)).sum().backward()
    probe.tick()
print(tuple(other.weight.grad.shape))
probe.done()
