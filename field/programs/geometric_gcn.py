"""A graph network of torch_geometric on a random graph."""

PROGRAM = {"needs": ["torch_geometric"], "jitter": {"memory": True}}

import probe
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

torch.manual_seed(0)
edges = torch.stack([torch.arange(400) % 100, (torch.arange(400) * 7 + 3) % 100])
graph = Data(x=torch.randn(100, 16), edge_index=edges, y=torch.arange(100) % 4).to("cuda")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(16, 32), GCNConv(32, 4)

    def forward(self, graph):
        return self.second(F.dropout(self.first(graph.x, graph.edge_index).relu(), training=self.training), graph.edge_index)


model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(8):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(graph), graph.y)
    loss.backward()
    optimizer.step()
    probe.tick()
    print(f"{epoch} {loss.item():.1f}")
probe.done()
