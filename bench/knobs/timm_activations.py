"""A vision transformer in training. Setting: `model.set_grad_checkpointing()`."""

import sys

import timm
import torch

on = sys.argv[1:] == ["on"]
model = timm.create_model("vit_small_patch16_224").cuda()
if on:
    model.set_grad_checkpointing()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    model(torch.randn(64, 3, 224, 224, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
