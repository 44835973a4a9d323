"""Another working directory, umask and limits in the middle of the run; relative paths."""

PROGRAM = {"jitter": {"files": ["*/model.pt"]}}

import os
import resource
import subprocess
import sys

import probe
import torch

model = torch.nn.Linear(8, 8).cuda()
model(torch.ones(2, 8, device="cuda")).sum().backward()
print(oct(os.umask(0o027)), os.getcwd() == os.path.dirname(os.path.abspath(__file__)))
os.makedirs("runs/first")
os.chdir("runs/first")
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
with open("log.txt", "w") as file:
    file.write("step 1\n")
torch.save(model.state_dict(), "model.pt")
subprocess.run([sys.executable, "-c", "open('child.txt', 'w').write('child')"], check=True)
torch.optim.SGD(model.parameters(), lr=0.1).step()
print(sorted(os.listdir("../..")), [name for name in sorted(os.listdir(".")) if name.endswith(".txt")])
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
probe.done()
