"""os.fork with every kind of end: os._exit, sys.exit, an exception, a signal; before and after CUDA is in use."""

PROGRAM = {"variants": {"after-cuda": {"arguments": ["after"]}, "before-cuda": {"arguments": ["before"]}}}

import gc
import os
import signal
import sys
import threading
import time

import probe
import torch
import torch._dynamo  # an optimizer imports it: here once, instead of in every child


def child(how):
    layer = torch.nn.Linear(4, 4)
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    names = sorted(thread.name for thread in threading.enumerate())
    print(how, tuple(layer(torch.ones(1, 4)).shape), gc.isenabled(), sys.getswitchinterval(), names, flush=True)
    print("wakeup", signal.set_wakeup_fd(-1), signal.getsignal(signal.SIGTERM), flush=True)
    if how == "_exit":
        os._exit(3)
    if how == "exit":
        sys.exit(4)
    if how == "raise":
        raise ValueError("in the child")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)


def main():
    if sys.argv[1] == "after":
        print(torch.nn.Linear(8, 8).cuda()(torch.ones(2, 8, device="cuda")).shape, flush=True)
    for how in ("_exit", "exit", "raise", "kill", "return"):
        pid = os.fork()
        if pid == 0:
            child(how)
            return
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    if sys.argv[1] == "before":
        print(torch.nn.Linear(8, 8).cuda()(torch.ones(2, 8, device="cuda")).shape, flush=True)
    probe.done()


if __name__ == "__main__":
    main()
