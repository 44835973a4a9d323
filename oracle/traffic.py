"""Applies the calls of a case to the real allocator of its release."""

import random

import cases
from cases import MIB, STREAMS, Sizes
from real import Real


def record(case):
    """What the allocator holds at the end: statistics, trace, segments, settings (see harness.cpp), and in `pools`
    the private pools that there were, in `scopes` how they were opened."""
    with Real(case.release, case.conf, case.total, case.used) as real:
        traffic = Traffic(case, real)
        traffic.run()
        pools = traffic.pools
        return {
            **real.dump(),
            "pools": pools.ids if pools else [],
            "scopes": pools.scopes if pools else set(),
            "changes": traffic.changes,
        }


class Traffic:
    def __init__(self, case, real):
        self.case, self.real = case, real
        self.rng = random.Random(f"{case.release} {case.seed} traffic")
        capacity = min(case.total - case.used, case.limit or case.total)
        self.sizes = Sizes(self.rng, case.sizes, max(capacity // 3, MIB))
        # Around this many live bytes; above the capacity it means that some requests fail.
        self.target = min(self.rng.uniform(0.4, 1.15) * capacity, 3 << 30)
        self.streams = STREAMS[: case.streams]
        self.live = {}  # block -> (size, pools that were open, address)
        self.next_block = 0
        self.conf = case.conf
        self.was_expandable = "expandable_segments:True" in case.conf
        self.changes = []  # allocations and failed requests before a change of the settings, and the new ones
        self.pools = Pools(self) if case.pools else None

    def run(self):
        if self.case.fraction is not None:
            self.real.set_memory_fraction(self.case.fraction)
        for _ in range(self.case.operations):
            self.step()
            if self.case.changes and self.rng.random() < 0.01:
                self.change_settings()
        if self.pools:
            self.pools.leave_all()

    def step(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.90:
            wanted = sum(size for size, _, _ in self.live.values()) < self.target
            if not self.live or rng.random() < (0.62 if wanted else 0.35):
                self.alloc()
            else:
                self.free(self.pick())
        elif kind < 0.905:
            if not self.pools or self.pools.may_empty_cache():
                self.real.empty_cache()
        elif kind < 0.908:
            self.real.take_snapshot()
        elif kind < 0.918:
            if len(self.live) > 20:  # the end of a step: half of everything goes
                for block in list(self.live)[: len(self.live) // 2]:
                    self.free(block)
        elif kind < 0.96:
            if self.case.record_stream:
                self.fall_behind_or_catch_up()
        elif self.pools:
            self.pools.step()

    def change_settings(self):
        self.conf = cases.draw_change(self.rng, self.case)
        self.was_expandable = self.was_expandable or "expandable_segments:True" in self.conf
        self.changes.append((*self.real.change_settings(self.conf), self.conf))

    def alloc(self):
        block, self.next_block = self.next_block, self.next_block + 1
        size = next(self.sizes)
        stream = self.rng.choice(self.streams)
        if self.pools:
            stream = self.pools.stream(stream)
        address = self.real.alloc(block, size, stream)
        if address is not None:
            self.live[block] = size, self.pools.open_ids() if self.pools else (), address

    def pick(self):
        blocks = list(self.live)
        return blocks[-1] if self.case.sizes == "steps" and self.rng.random() < 0.7 else self.rng.choice(blocks)

    def free(self, block):
        if self.case.record_stream and self.rng.random() < 0.3:
            for stream in self.rng.sample(self.streams, self.rng.randint(1, 2)):
                self.real.record_stream(block, stream)
        self.real.free(block)
        del self.live[block]

    def fall_behind_or_catch_up(self):
        kind = self.rng.random()
        if kind < 0.4:
            self.real.hold_events(True)
        elif kind < 0.8:
            self.real.complete_events(self.rng.randint(1, 5))
        else:
            self.real.hold_events(False)
            self.real.complete_events(1_000_000)


class Pools:
    """Private pools: of MemPools (0, k) and of graph captures (k, 0); opened, left, dropped."""

    CAPTURE_STREAM = STREAMS[1]  # CUDA captures no graph on the default stream

    def __init__(self, traffic):
        self.traffic, self.real, self.rng = traffic, traffic.real, traffic.rng
        self.kinds = traffic.case.pools
        self.special = traffic.case.special
        self.checkpoints = []  # (pool, size of each block by its address)
        self.users = {}  # pool -> MemPool or graphs that keep it
        self.open = []  # (pool, whether by a capture), oldest first
        self.ids = []  # of all pools that there ever were
        self.scopes = set()  # kinds of scopes that there were

    def open_ids(self):
        return [pool for pool, _ in self.open]

    def may_empty_cache(self):
        return not self.open or self.real.minor >= 8  # up to 2.7 it aborts inside a scope

    def may_drop(self):
        """Up to 2.11 only the final segments name their pool, so what a dropped pool had cannot be told afterwards."""
        return self.real.minor >= 12

    def stream(self, otherwise):
        """A capture takes place on its own stream; now and then another thread works elsewhere meanwhile."""
        capturing = any(capture for _, capture in self.open)
        return self.CAPTURE_STREAM if capturing and self.rng.random() < 0.9 else otherwise

    def step(self):
        if not self.open and self.special == "checkpoints" and self.users and self.rng.random() < 0.6:
            self.checkpoint_or_return()
        elif self.open:
            if self.rng.random() < 0.7:
                self.leave()
            elif self.kinds == "both" and len(self.open) < 2:
                self.use_mem_pool()
        elif self.users and self.may_drop() and self.rng.random() < 0.25:
            self.drop(self.rng.choice(list(self.users)))
        elif self.kinds == "mem_pools" or (self.kinds == "both" and self.rng.random() < 0.5):
            self.use_mem_pool()
        else:
            self.capture()

    def choose(self, graph):
        """A pool of that kind which is not open, now and then a new one."""
        idle = [pool for pool in self.users if (pool[1] == 0) == graph and pool not in self.open_ids()]
        if idle and self.rng.random() < 0.6:
            return self.rng.choice(idle)
        number = len(self.ids) + 1
        self.ids.append((number, 0) if graph else (0, number))
        return self.ids[-1]

    def use_mem_pool(self):
        pool = self.choose(graph=False)
        if pool not in self.users:  # the first scope makes the pool; the MemPool object stays its user
            self.real.open_pool(pool)
            self.real.close_pool(pool)
            self.users[pool] = 1
            if self.special in ("use_on_oom", "both") and self.rng.random() < 0.7:
                self.real.use_on_oom(pool, True)
            if self.special in ("no_split", "both") and self.rng.random() < 0.7:
                self.real.never_split(pool)
        self.real.open_pool(pool)
        self.scopes.add("nested" if self.open else "mem_pool")
        self.open.append((pool, False))

    def capture(self):
        pool = self.choose(graph=True)
        self.real.begin_capture(pool, self.CAPTURE_STREAM)
        self.users[pool] = self.users.get(pool, 0) + 1  # each graph stays a user of the pool
        self.scopes.add("capture")
        self.open.append((pool, True))

    def leave(self):
        pool, capture = self.open.pop()
        if capture:
            self.real.end_capture(pool)
        else:
            self.real.close_pool(pool)
            self.real.release_pool(pool)

    def drop(self, pool):
        """The MemPool or the graphs are gone; the memory goes now (MemPool, 2.8+) or when the cache is emptied.

        With expandable segments PyTorch counts a pool's pages wrongly when only part of them can go: it then deletes
        the pool under its blocks and breaks, at once or later.  So no block is left in such a pool."""
        expandable = self.traffic.was_expandable
        if self.special in ("use_on_oom", "both") and self.real.minor >= 11:
            self.real.use_on_oom(pool, False)
        if expandable:
            for block in [b for b, (_, pools, _) in self.traffic.live.items() if pool in pools]:
                self.traffic.free(block)
        for _ in range(self.users.pop(pool)):
            self.real.release_pool(pool)
        if pool[0] == 0 and self.real.minor >= 8:
            self.real.empty_cache(pool)
        elif expandable or self.rng.random() < 0.5:
            self.real.empty_cache()

    def checkpoint_or_return(self):
        """What cudagraph trees do: the pool is as it was after an earlier capture, before the next one."""
        if self.checkpoints and self.rng.random() < 0.6:
            number = self.rng.randrange(len(self.checkpoints))
            pool, sizes = self.checkpoints[number]
            if pool not in self.users:
                return
            first = self.traffic.next_block
            gone, back = self.real.return_to_checkpoint(number, first)
            for block in gone:
                del self.traffic.live[block]
            for block, address in enumerate(back, first):
                self.traffic.live[block] = sizes[address], [pool], address
            self.traffic.next_block = first + len(back)
        else:
            pool = self.rng.choice(list(self.users))
            of_pool = [(size, address) for size, pools, address in self.traffic.live.values() if pool in pools]
            self.real.checkpoint(pool, len(self.checkpoints))
            self.checkpoints.append((pool, {address: size for size, address in of_pool}))

    def leave_all(self):
        while self.open:
            self.leave()
