"""Running out of memory: caught and tried again with smaller batches, or not caught."""

PROGRAM = {
    "variants": {"retry": {"arguments": ["retry"]}, "uncaught": {"arguments": ["uncaught"], "exit": 1}},
    # The message names free memory of the whole GPU, and processes.
    "jitter": {"stderr": [r"of which .*? is free", r"Process \d+ has .*? memory in use\. ?", r"\(process \d+\)", r"this process has .*? memory in use"]},
}

import gc
import sys

import probe
import torch

GIB = 1 << 30
torch.cuda.set_per_process_memory_fraction(GIB / torch.cuda.get_device_properties(0).total_memory)
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def step(batch):
    loss = model(torch.ones(batch, 1024, device="cuda")).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


batch = 1 << 17
while True:
    try:
        step(batch)
        probe.tick()
        break
    except torch.OutOfMemoryError as error:
        if sys.argv[1] == "uncaught":
            probe.done()
            raise
        print(f"batch {batch}: {type(error).__name__} {str(error)[:19]}")
        del error
        batch //= 2
    gc.collect()
    torch.cuda.empty_cache()
print(f"batch {batch} fits")
for _ in range(5):
    step(batch)
    probe.tick()
print(torch.cuda.memory_stats()["num_ooms"])
probe.done()
