"""CUDA graphs recorded for each of many input shapes. Setting: `dynamic=True`."""

import sys

import torch

on = sys.argv[1:] == ["on"]
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
compiled = torch.compile(model, mode=None if on else "reduce-overhead", dynamic=on)
with torch.no_grad():
    for _ in range(3):
        for length in range(1024, 2048, 128):
            compiled(torch.randn(8, length, 1024, device="cuda"))
