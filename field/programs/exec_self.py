"""A program that starts itself again with os.execv, as launchers do after setting variables."""

# The first life of the process is replaced, not ended: whether it is recorded is open.
PROGRAM = {"ranks": None, "arguments": ["--epochs", "2"]}

import os
import sys

import probe
import torch

print(sys.argv, torch.zeros(100, device="cuda").shape, os.environ.get("AGAIN"), flush=True)
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv, "--again"])
probe.done()
