#!/usr/bin/env python3
"""Device memory that NCCL takes for its communicators, measured on one GPU.

    python bench/jobs/nccl_buffers.py [RANKS…]        default: 1 2 4

All ranks run on one card, each as if on a machine of its own (`NCCL_HOSTID`), connected by sockets on the loopback device.
Nothing else may use the card meanwhile. With up to two ranks, NCCL's environment variables are varied. Printed: bytes per rank
that each action takes, from the driver's free memory.
"""

import os
import subprocess
import sys

VARIANTS = [
    {},
    {"NCCL_BUFFSIZE": str(1 << 20)},
    {"NCCL_MAX_NCHANNELS": "1"},
    {"NCCL_MIN_NCHANNELS": "16"},
    {"NCCL_CUMEM_ENABLE": "0"},
]


def rank_program():
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    small, large = torch.ones(16, device="cuda"), torch.ones(world << 20, device="cuda")
    part = torch.empty(1 << 20, device="cuda")
    dist.init_process_group("nccl")
    store = dist.distributed_c10d._get_default_store()
    turn = 0

    def together():
        """Waits for all ranks, without NCCL."""
        nonlocal turn
        torch.cuda.synchronize()
        turn += 1
        store.set(f"turn{turn}/{rank}", "here")
        store.wait([f"turn{turn}/{each}" for each in range(world)])

    used = None

    def say(action):
        nonlocal used
        together()
        free, total = torch.cuda.mem_get_info()
        now = total - free - torch.cuda.memory_reserved() * world
        if rank == 0:
            change = 0 if used is None else now - used
            print(f"    {change / world / 2**20:10.2f} MiB per rank  {action}", flush=True)
        used = now
        together()

    say("init_process_group")
    dist.all_reduce(small)
    say("all_reduce of 64 bytes")
    dist.all_reduce(large)
    say("all_reduce of megabytes")
    dist.all_gather_into_tensor(large, part)
    say("all_gather")
    dist.reduce_scatter_tensor(part, large)
    say("reduce_scatter")
    dist.broadcast(part, 0)
    say("broadcast")
    dist.all_to_all_single(torch.empty_like(large), large)
    say("all_to_all")
    second = dist.new_group(range(world))
    dist.all_reduce(large, group=second)
    say("a second group: all_reduce of megabytes")
    dist.all_to_all_single(torch.empty_like(large), large, group=second)
    say("a second group: all_to_all")
    if world > 1:
        third = dist.new_group(range(world))
        if rank < 2:
            (dist.send if rank == 0 else dist.recv)(part, 1 - rank, group=third)
        say("a third group: send from rank 0 to rank 1")
    dist.destroy_process_group(second)
    say("destroy_process_group of the second group")
    together()
    os._exit(0)


def main():
    if "RANK" in os.environ:
        return rank_program()
    for world in [int(word) for word in sys.argv[1:]] or [1, 2, 4]:
        for number, variant in enumerate(VARIANTS if world <= 2 else VARIANTS[:1]):
            print(f"{world} ranks {variant}", flush=True)
            common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29700 + 10 * world + number)}
            common |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", **variant}
            processes = [
                subprocess.Popen(
                    [sys.executable, __file__], env=os.environ | common | {"RANK": str(rank), "NCCL_HOSTID": f"machine{rank}"}
                )
                for rank in range(world)
            ]
            for process in processes:
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()


main()
