"""torch.profiler with stacks and memory over a few steps, and its table of operators."""

PROGRAM = {"jitter": {"files": ["trace.json"], "stderr": True}}

import json

import probe
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def ready(profiler):
    names = ("aten::linear", "aten::addmm", "forward", "Optimizer")
    print({row.key: row.count for row in profiler.key_averages() if row.key.startswith(names)})
    profiler.export_chrome_trace("trace.json")
    with open("trace.json") as file:
        print(len(json.load(file)["traceEvents"]) > 10)


options = {"profile_memory": True, "with_stack": True, "record_shapes": True}
plan = schedule(wait=1, warmup=1, active=2, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready, **options) as profiler:
    for step in range(5):
        with record_function("forward"):
            loss = model(torch.ones(16, 32, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.tick()
        profiler.step()
probe.done()
