"""DistributedDataParallel under torchrun: one process with NCCL, two on one GPU with gloo."""

PROGRAM = {
    # torchrun has no option for a port that is chosen by chance, but standalone mode has.
    "variants": {
        "one": {"command": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "{script}", "nccl"]},
        "two": {
            "command": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "{script}", "gloo"],
            "ranks": 2,
        },
    },
    # When a bucket is freed depends on when NCCL is done with it.
    "jitter": {"stderr": True, "memory": True},
    "environment": {"OMP_NUM_THREADS": "1"},
}

import os
import sys

import probe
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.cuda.set_device(0)
    torch.distributed.init_process_group(sys.argv[1])
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    dataset = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs.cuda()), labels.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.tick()
        if rank == 0:
            print(f"{epoch} {loss.item():.1f} of {os.environ['WORLD_SIZE']}", flush=True)
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    probe.done()


if __name__ == "__main__":
    main()
