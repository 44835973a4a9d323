"""A daemon by double fork, which goes on after the program has ended."""

PROGRAM = {
    "wait_for": "daemon.txt",
    "known": "on an emulated GPU every process of a run ends with `oomph`, so it ends before it has written its file",
}

import os
import sys
import time

import probe
import torch

model = torch.nn.Linear(8, 8).cuda()
print(model(torch.ones(2, 8, device="cuda")).shape, flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        time.sleep(1.5)
        layer = torch.nn.Linear(4, 4)
        with open("daemon.part", "w") as file:
            file.write(f"alive {tuple(layer(torch.ones(1, 4)).shape)}\n")
        os.rename("daemon.part", "daemon.txt")
        os._exit(0)
    os._exit(0)
os.wait()
probe.done()
sys.exit(0)
