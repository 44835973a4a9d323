"""CUDA tensors shared with a spawned process, CPU tensors with a forked one."""

PROGRAM = {
    "variants": {
        # The emulated GPU has no memory that processes could share. The other process allocates nothing of its own.
        "cuda": {"arguments": ["spawn", "cuda"], "ranks": 1, "only": "real"},
        "cpu-fork": {"arguments": ["fork", "cpu"]},
        "cpu-spawn": {"arguments": ["spawn", "cpu"]},
    },
}

import sys

import probe
import torch
import torch.multiprocessing


def work(given, answers, done):
    while True:
        tensor = given.get()
        if tensor is None:
            break
        tensor.add_(1)
        answers.put((tuple(tensor.shape), tensor.device.type, str(tensor.dtype)))
        del tensor
    done.wait()
    probe.done()


def main():
    method, device = sys.argv[1:]
    own = torch.ones(256, 256, device="cuda")
    context = torch.multiprocessing.get_context(method)
    given, answers, done = context.Queue(), context.Queue(), context.Event()
    worker = context.Process(target=work, args=(given, answers, done))
    worker.start()
    tensors = [torch.zeros(128, size, device=device) for size in (64, 128, 256)]
    for tensor in tensors:
        given.put(tensor)
        print(answers.get(timeout=60))
    given.put(None)
    done.set()
    worker.join()
    print(worker.exitcode, own.shape, [tensor.shape[1] for tensor in tensors])
    if device == "cpu":
        print([tensor.sum().item() for tensor in tensors])
    probe.done()


if __name__ == "__main__":
    main()
