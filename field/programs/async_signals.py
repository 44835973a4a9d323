"""asyncio with signal handlers of the loop, tasks and a thread pool."""

PROGRAM = {
    "variants": {
        "term": {"signal": {"after": "ready", "send": "SIGTERM"}},
        "usr1": {"signal": {"after": "ready", "send": "SIGUSR1"}},
        "int": {"signal": {"after": "ready", "send": "SIGINT"}},
    },
}

import asyncio
import concurrent.futures
import signal

import probe
import torch


def step(model):
    return model(torch.ones(4, 32, device="cuda")).shape


async def main():
    model = torch.nn.Linear(32, 32).cuda()
    loop = asyncio.get_running_loop()
    # cuBLAS takes a workspace for each thread: with one thread the requests are the same in all runs.
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
    asked = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        loop.add_signal_handler(number, lambda number=number: asked.done() or asked.set_result(number))
    print(await asyncio.to_thread(step, model))
    print("ready", flush=True)
    number = await asyncio.wait_for(asked, 60)
    print("asked by", signal.Signals(number).name)
    print(await asyncio.gather(*(asyncio.to_thread(step, model) for _ in range(3))))
    probe.done()


asyncio.run(main())
