"""Tracers of the program's own: sys.settrace, sys.setprofile, threading.settrace, as debuggers and coverage use them."""

PROGRAM = {
    "variants": {
        "trace": {"arguments": ["settrace"]},
        "profile": {"arguments": ["setprofile"]},
        "cprofile": {"arguments": ["cProfile"], "known": "cProfile of Python 3.12 may lose a function in which a step ends"},
    },
}

import cProfile
import os
import pstats
import sys
import threading

import probe
import torch

calls = []


def tracer(frame, event, argument):
    if event == "call" and os.path.basename(frame.f_code.co_filename) == os.path.basename(__file__):
        calls.append(frame.f_code.co_name)
    return tracer


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x).relu()


def train(model, optimizer):
    loss = model(torch.ones(4, 8, device="cuda")).sum()
    loss.backward()
    optimizer.step()


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mode = sys.argv[1]
if mode == "cProfile":
    profile = cProfile.Profile()
    profile.runcall(train, model, optimizer)
    functions = {name for file, _, name in pstats.Stats(profile).stats if file == __file__}
    print(sorted(functions))
else:
    install = getattr(sys, mode)
    getattr(threading, mode)(tracer)
    install(tracer)
    train(model, optimizer)
    thread = threading.Thread(target=train, args=(model, optimizer), name="second")
    thread.start()
    thread.join()
    print(getattr(sys, mode.replace("set", "get"))() is tracer)
    install(None)
    getattr(threading, mode)(None)
    print(calls)
probe.done()
