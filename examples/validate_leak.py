"""A network that is validated after every training step, and runs out of memory: the program of docs/tutorial.md."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
).cuda()  # fmt: skip
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 3, 128, 128).cuda(), torch.randint(0, 10, (32,)).cuda()


def train() -> None:
    images, labels = batch()
    criterion(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def validate() -> torch.Tensor:
    images, labels = batch()
    return criterion(model(images), labels)


history = []
for step in range(100):
    train()
    history.append(validate())
