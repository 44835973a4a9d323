"""Options of the program's own that oomph has as well, and a `--`."""

PROGRAM = {
    "variants": {
        "like-ours": {"arguments": ["--gpus", "4", "--json", "--try", "x", "--vary", "y", "--gpu-memory", "8GiB", "-o", "out", "--gpu", "h100", "--steps", "3", "--", "rest", "--json"]},
        "joined": {"arguments": ["--gpus=4", "--gpu-memory=8GiB", "--gpu=l4", "-oout", "--emulate=t4"]},
        "unusual": {"arguments": ["", "two words", "*", "$HOME", "--", "-", "-m", "-c", "--help"]},
    },
}

import sys

import probe
import torch

print(torch.ones(3, device="cuda").shape)
for argument in sys.argv[1:]:
    print(repr(argument))
probe.done()
