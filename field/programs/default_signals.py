"""No handlers: the signal ends the program while it waits between two steps."""

PROGRAM = {
    "variants": {
        "term": {"signal": {"after": "ready", "send": "SIGTERM"}, "exit": 143},
        "int": {"signal": {"after": "ready", "send": "SIGINT"}, "exit": 130},
        "hup": {"signal": {"after": "ready", "send": "SIGHUP"}, "exit": 129, "ranks": None},
    },
}

import time

import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(7):
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 5:
        print("ready", flush=True)
        time.sleep(60)
