"""`python -m package` with relative imports, as projects start their training."""

PROGRAM = {"ranks": 1, "command": ["-c", "import package_module; package_module.main()"]}

import os
import subprocess
import sys

MAIN = """
import sys
import probe, torch
from .model import Net
print(__name__, __package__, sys.argv[1:], Net().cuda()(torch.ones(1, 4, device="cuda")).shape)
probe.done()
"""
MODEL = """
from torch import nn
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
"""


def main():
    os.makedirs("project")
    for name, text in (("__init__", ""), ("__main__", MAIN), ("model", MODEL)):
        with open(f"project/{name}.py", "w") as file:
            file.write(text)
    done = subprocess.run([sys.executable, "-m", "project", "--lr", "0.1"], capture_output=True, text=True)
    print(done.returncode, done.stdout, [line for line in done.stderr.splitlines() if not line.startswith("oomph: ")])
    done = subprocess.run([sys.executable, "project"], capture_output=True, text=True)
    print(done.returncode, done.stdout, "attempted relative import" in done.stderr)
