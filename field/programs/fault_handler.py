"""faulthandler: tracebacks on a signal, after a time, and at a crash."""

PROGRAM = {
    "variants": {
        "usr1": {"arguments": ["usr1"], "signal": {"after": "ready", "send": "SIGUSR1"}},
        "later": {"arguments": ["later"]},
        "crash": {"arguments": ["crash"], "exit": 139, "ranks": None},
    },
    # All threads are listed, also those of libraries and of the recorder; modules in C are listed at a crash.
    "jitter": {
        "stderr": [
            r'^(Thread|Current thread) 0x[^\n]*:\n(  File "(?!\{work\})[^\n]*\n)+\n?',
            r"0x[0-9a-f]+",
            r"^Extension modules: .*\n",
        ]
    },
}

import ctypes
import faulthandler
import signal
import sys
import time

import probe
import torch

faulthandler.enable()
torch.ones(10, device="cuda")


def wait():
    time.sleep(1.0)


mode = sys.argv[1]
if mode == "usr1":
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    print("ready", flush=True)
    wait()
elif mode == "later":
    faulthandler.dump_traceback_later(0.5, exit=False)
    wait()
    faulthandler.cancel_dump_traceback_later()
print("going on", flush=True)
probe.done()
if mode == "crash":
    ctypes.string_at(0)
