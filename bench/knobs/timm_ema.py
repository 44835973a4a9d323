"""An average of the weights on the GPU. Setting: `device="cpu"` of `ModelEmaV3`."""

import sys

import timm
import torch
from timm.utils import ModelEmaV3

on = sys.argv[1:] == ["on"]
model = timm.create_model("vit_base_patch16_224").cuda()
ema = ModelEmaV3(model, device="cpu" if on else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(2, 3, 224, 224, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.update(model)
