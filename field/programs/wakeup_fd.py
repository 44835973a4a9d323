"""signal.set_wakeup_fd of the program's own, with select on it."""

PROGRAM = {"signal": {"after": "ready", "send": "SIGTERM"}}

import select
import signal
import socket

import probe
import torch

torch.ones(10, device="cuda")
reading, writing = socket.socketpair()
writing.setblocking(False)
signal.signal(signal.SIGTERM, lambda *_: None)
print("before", signal.set_wakeup_fd(writing.fileno()))
print("ready", flush=True)
ready, _, _ = select.select([reading], [], [], 60)
print(list(reading.recv(16)) if ready else "nothing")
print(signal.set_wakeup_fd(-1) == writing.fileno())
probe.done()
