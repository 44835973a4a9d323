"""Noise prediction with a small UNet, an EMA copy and sampling, as diffusion models are trained."""

PROGRAM = {"jitter": {"memory": True}}

import copy

import probe
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.norm = nn.GroupNorm(4, inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, t):
        h = self.first(F.silu(self.norm(x))) + self.time(t)[:, :, None, None]
        return self.second(F.silu(h)) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Block(width, 2 * width, 32), Block(2 * width, 4 * width, 32)])
        self.attention = nn.MultiheadAttention(4 * width, 4, batch_first=True)
        self.up = nn.ModuleList([Block(8 * width, 2 * width, 32), Block(4 * width, width, 32)])
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        t = self.time(t[:, None])
        x, kept = self.enter(x), []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(x.shape)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1), t)
        return self.leave(x)


torch.manual_seed(0)
model = UNet().cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
alphas = torch.linspace(0.99, 0.01, 50, device="cuda")
for step in range(8):
    images = torch.rand(4, 3, 32, 32, device="cuda")
    noise = torch.randn_like(images)
    times = torch.randint(0, 50, (4,), device="cuda")
    alpha = alphas[times][:, None, None, None]
    loss = F.mse_loss(model(alpha.sqrt() * images + (1 - alpha).sqrt() * noise, times / 50), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters()):
            kept.lerp_(new, 0.1)
    probe.tick()
    print(f"{step} {loss.item():.1f}")
with torch.no_grad():
    sample = torch.randn(2, 3, 32, 32, device="cuda")
    for time in reversed(range(0, 50, 10)):
        sample = sample - 0.1 * average(sample, torch.full((2,), time / 50, device="cuda"))
    print(tuple(sample.shape))
probe.done()
