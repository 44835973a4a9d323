"""A program that reads its standard input to the end."""

PROGRAM = {"stdin": "first line\nsecond line\n"}

import sys

import probe
import torch

print(torch.ones(3, device="cuda").shape)
for line in sys.stdin:
    print(repr(line))
print(sys.stdin.isatty(), sys.stdin.read() == "")
probe.done()
