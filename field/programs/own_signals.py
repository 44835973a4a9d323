"""Handlers of the program's own for SIGTERM, SIGUSR1 and SIGINT, set after torch is imported."""

PROGRAM = {
    "variants": {
        "term": {"signal": {"after": "ready", "send": "SIGTERM"}},
        "usr1": {"signal": {"after": "ready", "send": "SIGUSR1"}},
        "int": {"signal": {"after": "ready", "send": "SIGINT"}},
    },
}

import signal
import sys
import time

import probe
import torch

seen = []


def handle(number, frame):
    seen.append((signal.Signals(number).name, frame is not None))


for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    print(signal.Signals(number).name, signal.signal(number, handle))
model = torch.nn.Linear(64, 64).cuda()
inputs = torch.ones(4, 64, device="cuda")
model(inputs)
# Calls of modules go on, without allocations that depend on how long the signal takes.
idle = torch.nn.Identity()
print("ready", flush=True)
deadline = time.monotonic() + 60
while not seen and time.monotonic() < deadline:
    idle(inputs)
    time.sleep(0.01)
print(seen)
# A checkpoint on the way out, as jobs under Slurm write it.
with open("checkpoint.txt", "w") as file:
    file.write("saved\n")
probe.done()
sys.exit(0)
