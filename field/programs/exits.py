"""Every way to end: exit codes, messages, exceptions, os._exit, Ctrl-C, the order of atexit."""

PROGRAM = {
    "variants": {
        "zero": {"arguments": ["zero"]},
        "three": {"arguments": ["three"], "exit": 3},
        "message": {"arguments": ["message"], "exit": 1},
        "exception": {"arguments": ["exception"], "exit": 1},
        "chained": {"arguments": ["chained"], "exit": 1},
        "interrupt": {"arguments": ["interrupt"], "exit": 130},
        "now": {"arguments": ["now"], "exit": 7, "ranks": None},
        "abort": {"arguments": ["abort"], "exit": 134, "ranks": None},
        "atexit": {"arguments": ["atexit"]},
        "thread": {"arguments": ["thread"]},
    },
}

import atexit
import os
import sys
import threading
import time

import probe
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(9, 9))

    def forward(self, x):
        return self.inner(x)


model = Net().cuda()
inputs = torch.ones(2, 8, device="cuda")
model.inner[0](inputs).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
mode = sys.argv[1]
print("at the end", mode, flush=True)
probe.done()
if mode == "three":
    sys.exit(3)
elif mode == "message":
    sys.exit("a message for standard error")
elif mode == "exception":
    model(inputs)
elif mode == "chained":
    try:
        model(inputs)
    except RuntimeError as error:
        raise ValueError("wrong size") from error
elif mode == "interrupt":
    raise KeyboardInterrupt
elif mode == "now":
    os._exit(7)
elif mode == "abort":
    os.abort()
elif mode == "atexit":
    for number in range(3):
        atexit.register(print, "atexit", number, flush=True)
    atexit.register(lambda: print(model.inner[0](inputs).shape, flush=True))
elif mode == "thread":
    def last():
        time.sleep(0.3)
        print("the thread ends last", model.inner[0](inputs).shape, flush=True)

    threading.Thread(target=last).start()
