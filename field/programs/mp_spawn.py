"""torch.multiprocessing.spawn: each process uses the GPU, one of two fails in the second variant."""

PROGRAM = {
    "variants": {"fine": {"arguments": ["fine"]}, "failing": {"arguments": ["failing"], "exit": 1}},
    "ranks": 2,
    "jitter": {"stdout": [r"^worker \d .*\n"]},
}

import sys

import probe
import torch
import torch.multiprocessing


def work(rank, mode):
    torch.manual_seed(rank)
    model = torch.nn.Linear(64, 64).cuda()
    for _ in range(3):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        probe.tick()
    print(f"worker {rank} done", flush=True)
    probe.done()
    if mode == "failing" and rank == 1:
        raise ValueError("worker 1 gives up")


if __name__ == "__main__":
    if sys.argv[1] == "failing":
        # The others would be ended by SIGTERM, at a point that differs.
        context = torch.multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(rank, "failing")) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print([worker.exitcode for worker in workers])
        probe.done()
        sys.exit(max(worker.exitcode for worker in workers))
    torch.multiprocessing.spawn(work, args=("fine",), nprocs=2)
    print("all done")
    probe.done()
