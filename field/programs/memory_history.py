"""A program that records its own memory history: as PyTorch's guide does, and with limits that it checks."""

PROGRAM = {
    "variants": {"guide": {"arguments": ["guide"]}, "limits": {
        "arguments": ["limits"], "known": "its history is ours as well, so it has more events than it asked for"}},
    "jitter": {"files": ["own.pickle"]},
}

import pickle
import sys

import probe
import torch


def allocations(snapshot):
    return [event for event in snapshot["device_traces"][0] if event["action"] == "alloc" and event["size"] in SIZES]


SIZES = (4000, 4096)
"""Of the tensors below, as requested and rounded."""


kept = []
if sys.argv[1] == "guide":
    torch.cuda.memory._record_memory_history(max_entries=1000)
    kept += [torch.ones(1000, device="cuda") for _ in range(5)]
    snapshot = torch.cuda.memory._snapshot()
    own = allocations(snapshot)
    print(sorted(snapshot)[:3], len(own))
    print([frame["filename"].split("/")[-1] for frame in own[0]["frames"] if frame["name"] == "<module>"])
    torch.cuda.memory._dump_snapshot("own.pickle")
    with open("own.pickle", "rb") as file:
        print(len(allocations(pickle.load(file))))
    torch.cuda.memory._record_memory_history(enabled=None)
else:
    kept += [torch.ones(1000, device="cuda") for _ in range(5)]
    print(len(torch.cuda.memory._snapshot()["device_traces"][0]))
    torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=3)
    kept += [torch.ones(2000, device="cuda") for _ in range(10)]
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    print(len(events), [len(event.get("frames", [])) for event in events])
    torch.cuda.memory._record_memory_history(enabled=None)
    print(len(torch.cuda.memory._snapshot()["device_traces"][0]))
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.max_memory_allocated(), len(kept))
probe.done()
