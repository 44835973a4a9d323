"""A program that records its own memory history, with snapshots and a file of its own."""

PROGRAM = {"jitter": {"files": ["own.pickle"]}}

import os
import pickle

import probe
import torch

torch.cuda.memory._record_memory_history(max_entries=1000)
kept = [torch.ones(1000, device="cuda") for _ in range(5)]
snapshot = torch.cuda.memory._snapshot()
trace = [event for event in snapshot["device_traces"][0] if event["action"] == "alloc"]
print(sorted(snapshot)[:3], len(trace), {event["size"] for event in trace})
names = [frame["name"] for frame in trace[0].get("frames", [])]
print("<module>" in names, [frame["filename"].split("/")[-1] for frame in trace[0]["frames"] if frame["name"] == "<module>"])
torch.cuda.memory._dump_snapshot("own.pickle")
with open("own.pickle", "rb") as file:
    print(len(pickle.load(file)["device_traces"]))
torch.cuda.memory._record_memory_history(enabled=None)
kept.append(torch.ones(5000, device="cuda"))
print(len(torch.cuda.memory._snapshot()["device_traces"][0]))
# Again, with other settings.
torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=3)
kept += [torch.ones(2000, device="cuda") for _ in range(10)]
print(len(torch.cuda.memory._snapshot()["device_traces"][0]))
torch.cuda.memory._record_memory_history(enabled=None)
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.max_memory_allocated(), os.path.exists("own.pickle"))
probe.done()
