"""ProcessPoolExecutor with processes forked before and after CUDA is initialized; they call modules on the CPU."""

PROGRAM = {"variants": {"before-cuda": {"arguments": ["before"]}, "after-cuda": {"arguments": ["after"]}}}

import concurrent.futures
import gc
import multiprocessing
import sys
import threading

import probe
import torch

normalize = torch.nn.LayerNorm(8)


def work(number):
    with torch.no_grad():
        total = normalize(torch.arange(8.0) * number).abs().sum().item()
    names = sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
    return f"{total:.3f}", gc.isenabled(), sys.getswitchinterval(), names, torch.cuda._is_in_bad_fork()


def main():
    context = multiprocessing.get_context("fork")
    use = lambda: torch.nn.Linear(32, 32).cuda()(torch.ones(4, 32, device="cuda")).shape
    if sys.argv[1] == "after":
        print(use())
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        for answer in pool.map(work, range(6)):
            print(answer)
    if sys.argv[1] == "before":
        print(use())
    probe.done()


if __name__ == "__main__":
    main()
