"""The real allocator of one torch release on the emulated GPU, as a Python object."""

import json
import subprocess
import tempfile

import build


class Aborted(Exception):
    """PyTorch ended the process; the message is its own."""


class Real:
    """Streams are handles (0 = default stream), pools are pairs of integers, blocks go by the caller's ids."""

    def __init__(self, release, conf="", total=8 << 30, used=0):
        self.minor = build.minor(release)
        self.complaints = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would stop PyTorch's warnings
        self.process = subprocess.Popen(
            [build.harness(release)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env=build.environment(total, used, conf),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self.complaints.close()

    def send(self, *words):
        """Calls that answer nothing are not awaited: an abort shows at the next one that answers."""
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
        except BrokenPipeError:
            self.abort()

    def answer(self):
        try:
            self.process.stdin.flush()
        except BrokenPipeError:
            self.abort()
        line = self.process.stdout.readline()
        if not line:
            self.abort()
        return line

    def abort(self):
        status = self.process.wait()
        self.complaints.seek(0)
        lines = self.complaints.read().splitlines()
        said = [line for line in lines if "what():" in line] or [line for line in lines if "terminate called" in line]
        raise Aborted(said[0].strip()[:300] if said else f"ended with status {status}")

    def alloc(self, block, size, stream):
        """The address, or None when out of memory."""
        self.send("a", block, size, stream)
        return int(self.answer()) or None

    def free(self, block):
        self.send("f", block)

    def record_stream(self, block, stream):
        self.send("u", block, stream)

    def empty_cache(self, pool=()):
        self.send("e", *pool)

    def take_snapshot(self):
        self.send("s")

    def hold_events(self, hold):
        self.send("h", int(hold))

    def complete_events(self, count):
        self.send("c", count)

    def set_memory_fraction(self, fraction):
        self.send("F", repr(fraction))

    def change_settings(self, conf):
        """Allocations and failed requests before the change."""
        self.send("S", conf)
        return tuple(map(int, self.answer().split()))

    def use_on_oom(self, pool, use):
        self.send("U", *pool, int(use))

    def never_split(self, pool):
        self.send("N", *pool)

    def checkpoint(self, pool, number):
        self.send("K", *pool, number)

    def return_to_checkpoint(self, number, block):
        """Blocks that are gone, and addresses of those that are there again, which go by `block` and the ids after it."""
        self.send("L", number, block)
        gone, back = self.answer().split(":")
        return list(map(int, gone.split())), list(map(int, back.split()))

    def open_pool(self, pool):
        """What `with torch.cuda.use_mem_pool(pool)` does on entry; on an unknown id it creates the pool."""
        self.send("B", *pool, "*")

    def close_pool(self, pool):
        self.send("E", *pool)

    def begin_capture(self, pool, stream):
        self.send("B", *pool, stream)
        self.send("m", 1)

    def end_capture(self, pool):
        self.send("m", 0)
        self.send("E", *pool)

    def release_pool(self, pool):
        self.send("R", *pool)

    def dump(self):
        """Statistics, trace, segments and settings, as harness.cpp prints them."""
        self.send("d")
        lines = [self.answer()]
        while lines[-1] != "\n":
            lines.append(self.answer())
        return json.loads("".join(lines))
