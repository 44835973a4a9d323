"""The environment as the program and its children see it."""

PROGRAM = {
    "environment": {"EMPTY": "", "GREETING": "hello"},
    "known": "PYTHONPATH and OOMPH_CHILD are set, so that its children are recorded",
}

import os
import subprocess
import sys

import probe
import torch

SHOW = """
import os
ours = ("FIELD_", "OOMPH_EMULATOR")
for name in sorted(os.environ):
    if not name.startswith(ours) and name not in ("PYTHONPATH", "LC_CTYPE"):
        print(name)
print("PYTHONPATH", repr(os.environ.get("PYTHONPATH", "")), flush=True)
"""
print(torch.ones(3, device="cuda").shape, os.environ["GREETING"], repr(os.environ["EMPTY"]))
exec(SHOW)
subprocess.run([sys.executable, "-c", SHOW], check=True)
print(subprocess.run("echo $GREETING", shell=True, capture_output=True, text=True).stdout)
# A child with an environment of its own.
print(subprocess.run([sys.executable, "-c", "print(6 * 7)"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True))
probe.done()
