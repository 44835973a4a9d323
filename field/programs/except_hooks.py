"""sys.excepthook, threading.excepthook and sys.unraisablehook replaced by the program."""

PROGRAM = {"exit": 1}

import sys
import threading
import traceback

import probe
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("no forward today")


def lines(trace):
    return [(frame.filename.split("/")[-1], frame.name) for frame in traceback.extract_tb(trace)]


def main_hook(kind, error, trace):
    print("main", kind.__name__, error, lines(trace))
    sys.__excepthook__(kind, error, trace)


def thread_hook(given):
    print("thread", given.exc_type.__name__, given.exc_value, given.thread.name, lines(given.exc_traceback)[-2:])


print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)
sys.excepthook = main_hook
threading.excepthook = thread_hook
model = Net().cuda()
inputs = torch.ones(2, device="cuda")
thread = threading.Thread(target=model, args=(inputs,), name="second")
thread.start()
thread.join()
print(sys.excepthook is main_hook)
probe.done()
model(inputs)
