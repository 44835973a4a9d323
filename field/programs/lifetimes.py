"""Who keeps what alive: weak references, the garbage collector, threads, and how the interpreter is set."""

PROGRAM = {}

import gc
import sys
import threading
import weakref

import probe
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x)


gc.collect()
gc.disable()
base = torch.cuda.memory_allocated()
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
loss = model(torch.ones(8, 64, device="cuda")).sum()
loss.backward()
optimizer.step()
watched = {name: weakref.ref(thing) for name, thing in [("layer", model.layer), ("weight", model.layer.weight), ("loss", loss)]}
watched["optimizer"] = weakref.ref(optimizer)
references = sys.getrefcount(model), sys.getrefcount(model.layer.weight)
del loss, optimizer, model
print(references, {name: thing() is None for name, thing in watched.items()}, torch.cuda.memory_allocated() - base)
gc.collect()
print({name: thing() is None for name, thing in watched.items()}, torch.cuda.memory_allocated() - base)
gc.enable()
print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks), sys.getswitchinterval(), sys.getrecursionlimit())
print(sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile(), sys.flags.dev_mode)


def work():
    print("in a thread", torch.ones(3, device="cuda").shape)


workers = [threading.Thread(target=work, name=f"worker{number}") for number in range(2)]
for worker in workers:
    worker.start()
    worker.join()
# As programs wait for all their threads.
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(timeout=1)
        print(thread.name, thread.daemon, thread.is_alive())
print(threading.active_count())
probe.done()
