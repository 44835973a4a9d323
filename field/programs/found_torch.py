"""A program that looks whether torch is there before it imports it, as libraries do."""

PROGRAM = {}

import importlib.util

import probe

print(importlib.util.find_spec("torch").name)
import torch

print(torch.__spec__.loader.__class__.__name__, torch.ones(3, device="cuda").shape)
probe.done()
