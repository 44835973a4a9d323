"""Python processes started by subprocess: one without torch, one with torch on the CPU, one with CUDA."""

PROGRAM = {
    "variants": {
        "plain": {"arguments": ["print('sum', sum(range(10)))"]},
        "cpu": {"arguments": ["import torch; print(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)"]},
        "cuda": {"arguments": ["import probe, torch; print(torch.ones(9, device='cuda').shape); probe.done()"], "ranks": 2},
        "failing": {"arguments": ["import torch; torch.ones(3, device='cuda'); raise SystemExit(5)"], "ranks": 2},
    },
}

import subprocess
import sys

import probe
import torch

model = torch.nn.Linear(16, 16).cuda()
model(torch.ones(2, 16, device="cuda")).sum().backward()
done = subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True)
print(done.returncode, done.stdout.strip(), [line for line in done.stderr.splitlines() if not line.startswith("oomph: ")])
# Shells and other programs are started as well.
print(subprocess.run("echo $((6 * 7)); exit 4", shell=True, capture_output=True, text=True))
probe.done()
