"""Random cases: settings, a device and a sequence of calls, all drawn from a release and a seed.

Equal (release, seed) give the same calls in every run, so a recording can be made again."""

import dataclasses
import random

import build

MIB = 1 << 20
STREAMS = [0, 0x10000100, 0x10000200]


@dataclasses.dataclass
class Case:
    release: str
    seed: int
    conf: str  # PYTORCH_CUDA_ALLOC_CONF
    total: int  # device memory
    used: int  # part of it that other programs hold
    fraction: float | None  # set_per_process_memory_fraction
    limit: int | None  # what that, or the option of the same name, comes to in bytes
    streams: int
    record_stream: bool  # blocks are used on other streams, which may fall behind
    pools: str  # private pools that come and go: '', 'mem_pools', 'captures' or 'both' (then also nested)
    sizes: str  # which sizes are asked for, see Sizes
    operations: int
    cut: float  # share of the history that a ring buffer has lost
    changes: str = ""  # what changes while the program runs: '', 'settings' or 'expandable' (switched on and off)
    special: str = ""  # pools of a special kind: '', 'use_on_oom', 'no_split', 'both' or 'checkpoints'


def draw(release, seed):
    rng = random.Random(f"{release} {seed}")
    minor = build.minor(release)
    tight = rng.random() < 0.6
    total = 64 * 1024 * (rng.randint(2_000, 18_000) if tight else rng.randint(60_000, 250_000))
    options, fraction = draw_settings(rng, minor)
    used = rng.randrange(0, total // 4, 64 * 1024) if rng.random() < 0.1 else 0
    streams = rng.choice((1, 1, 2, 3))
    record_stream = streams > 1 and rng.random() < 0.75
    pools = rng.choice(("mem_pools", "captures", "both")) if minor >= 3 and rng.random() < 0.35 else ""
    if pools and minor < 12:
        # With it a request may return a segment of a live private pool, and up to 2.11 nothing says whose it was.
        options.pop("max_split_size_mb", None)
    return Case(
        release,
        seed,
        conf=",".join(f"{key}:{value}" for key, value in options.items()),
        total=total,
        used=used,
        fraction=fraction,
        limit=limit_of(minor, total, fraction, options),
        streams=streams,
        record_stream=record_stream,
        pools=pools,
        sizes=rng.choice(Sizes.KINDS),
        operations=rng.randint(400, 700),
        cut=rng.uniform(0.1, 0.8) if rng.random() < 0.17 else 0,
    )


def draw_changing(release, seed):
    """The same, with settings that change while the program runs, or pools of a special kind.  2.3 and later."""
    case = draw(release, seed)
    rng = random.Random(f"{release} {seed} changing")
    minor = build.minor(release)
    case.cut = 0
    kinds = ["checkpoints"] + ["use_on_oom"] * (minor >= 8) + ["no_split", "both"] * (minor >= 10)
    case.special = rng.choice(kinds) if rng.random() < 0.5 else ""
    case.changes = "settings" if not case.special or rng.random() < 0.5 else ""
    if case.special:
        case.pools = "captures" if case.special == "checkpoints" else "mem_pools"
    if case.special == "checkpoints":
        case.record_stream = False  # PyTorch refuses a checkpoint while frees wait for other streams
    if case.pools:
        options = [option for option in case.conf.split(",") if not option.startswith("max_split_size_mb")]
        if minor < 12 or case.special == "checkpoints":
            case.conf = ",".join(options)
    return case


def draw_switching(release, seed):
    """The same, with expandable segments that are switched on and off: growths show that without further notes."""
    case = draw(release, seed)
    case.cut, case.pools, case.conf, case.changes = 0, "", "", "expandable"
    case.limit = limit_of(build.minor(release), case.total, case.fraction, {})
    return case


def draw_change(rng, case):
    """A settings string for `_set_allocator_settings`.

    With `max_split_size_mb`, PyTorch returns oversize free blocks to the device when memory is short, and takes for
    granted that they are whole segments.  Where blocks were split before it was set, it breaks.  So it is set only
    where memory is never short."""
    if case.changes == "expandable":
        return f"expandable_segments:{rng.choice(('True', 'False'))}"
    options, _ = draw_settings(rng, build.minor(case.release))
    is_short = case.total < (4 << 30) or case.limit is not None
    if is_short or case.pools:
        options.pop("max_split_size_mb", None)
    for option in ("per_process_memory_fraction", "backend"):
        options.pop(option, None)
    if build.minor(case.release) >= 1 and rng.random() < 0.5:
        options["expandable_segments"] = rng.choice(("True", "False"))
    return ",".join(f"{key}:{value}" for key, value in options.items())


def limit_of(minor, total, fraction, options):
    if fraction is None:
        fraction = float(options.get("per_process_memory_fraction", 1.0)) if minor >= 10 else None
    if fraction is None or (fraction == 1.0 and minor >= 10):
        return None
    return int(fraction * total)


def draw_settings(rng, minor):
    """Options that the release takes, in a random order, and the memory fraction."""
    options = {}
    fraction = round(rng.uniform(0.1, 1), 2) if rng.random() < 0.2 else None
    expandable = minor >= 1 and rng.random() < 0.35
    if expandable:
        options["expandable_segments"] = "True"
    smallest = 20 if minor >= 10 else 21  # what max_split_size_mb and max_non_split_rounding_mb must be at least
    if minor >= 11 and rng.random() < 0.2:
        smallest = rng.choice((11, 12, 13, 16, 24, 32, 48, 64))
        options["large_segment_size_mb"] = smallest
    # 2.1 to 2.4 abort with both of them when memory is short.
    splits = rng.random() < 0.35 and not (expandable and minor <= 4)
    if splits:
        options["max_split_size_mb"] = smallest + rng.choice((0, 0, 1, 3, 12, 20, 44, 108))
    if minor >= 6 and rng.random() < (0.4 if splits else 0.05):
        options["max_non_split_rounding_mb"] = smallest + rng.choice((0, 1, 4, 20, 44, 108))
    if rng.random() < 0.3:
        options["roundup_power2_divisions"] = draw_divisions(rng, minor)
    if rng.random() < 0.25:
        options["garbage_collection_threshold"] = round(rng.uniform(0.05, 0.95), 2)
        if rng.random() < 0.9 and fraction is None:
            fraction = round(rng.uniform(0.1, 1), 2) if rng.random() < 0.9 else 1.0
    if minor >= 10 and fraction is not None and rng.random() < 0.4:
        options["per_process_memory_fraction"] = fraction
        fraction = None
    if minor >= 2 and rng.random() < 0.05:
        options["release_lock_on_cudamalloc"] = "True"
    if rng.random() < 0.05:
        options["backend"] = "native"
    keys = list(options)
    rng.shuffle(keys)
    return {key: options[key] for key in keys}, fraction


def draw_divisions(rng, minor):
    if rng.random() < 0.5:
        return rng.choice((1, 2, 4, 8, 16, 32, 64))
    keys = sorted(rng.sample([1 << i for i in range(17)], rng.randint(1, 5)))
    if rng.random() < 0.2:
        rng.shuffle(keys)
    none = 0 if minor >= 4 else 1  # 0 is taken from 2.4 on
    pairs = [f"{key}:{rng.choice((none, 1, 2, 4, 8, 16))}" for key in keys]
    if rng.random() < 0.6:
        pairs.append(f">:{rng.choice((1, 2, 4, 8))}")
    return f"[{','.join(pairs)}]"


class Sizes:
    """Sizes of requests.  `few` and `steps` repeat themselves, as training does: free blocks of equal size compete."""

    KINDS = ("mixed", "mixed", "few", "few", "steps", "small", "large")
    EDGES = (
        1,
        512,
        513,
        MIB - 511,
        MIB,
        MIB + 1,
        2 * MIB,
        10 * MIB - 512,
        10 * MIB,
        10 * MIB + 1,
        20 * MIB - 1,
        20 * MIB,
        22 * MIB,
        64 * MIB,
    )

    def __init__(self, rng, kind, largest):
        self.rng, self.kind, self.largest = rng, kind, largest
        self.chosen = [self.mixed() for _ in range(rng.randint(4, 12) if kind == "few" else rng.randint(15, 40))]
        self.position = 0

    def mixed(self):
        rng, kind = self.rng, self.rng.random()
        if kind < 0.25:
            size = rng.randint(1, 4096)
        elif kind < 0.40:
            size = rng.randint(1, MIB)
        elif kind < 0.50:
            size = rng.choice(self.EDGES)
        elif kind < 0.75:
            size = rng.randint(MIB, 12 * MIB)
        elif kind < 0.93:
            size = rng.randint(10 * MIB, 60 * MIB)
        else:
            size = rng.randint(40 * MIB, 300 * MIB)
        return size if size < self.largest else rng.randint(1, self.largest)

    def __next__(self):
        if self.kind == "few":
            return self.rng.choice(self.chosen)
        if self.kind == "steps":
            self.position = (self.position + 1) % len(self.chosen)
            return self.chosen[self.position]
        if self.kind == "small" and self.rng.random() < 0.9:
            return self.rng.choice((self.rng.randint(1, MIB // 2), self.rng.randint(1, 64) << 10))
        if self.kind == "large":
            return self.rng.randint(MIB, min(100 * MIB, self.largest))
        return self.mixed()
