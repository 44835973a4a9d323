#!/usr/bin/env python3
"""Grow a recorded CUDA memory snapshot: repeat its history until it is as long as asked.

    grow.py BASE.pickle[.xz] OUT.pickle --events N

Repetition k is the recorded history with every address moved by k times a constant larger
than the span of the recorded addresses, and every time moved by k times (duration + 1 ms).
Each repetition so has segments of its own, and the whole is a consistent history: every
free refers to a block that is live, and the final segments are what the events lead to.
Only whole repetitions are written, so OUT can hold more than N events.

The file is pickled as torch.cuda.memory._dump_snapshot does it. What is one object in the
base stays one object in each repetition, because that decides whether pickle writes a value
again or a reference to it. Key strings and frame dicts are common to all repetitions.

Memory: about 700 bytes an event.
"""

import argparse
import gc
import lzma
import pickle
import sys

GIB = 1 << 30
ADDRESS_LIMIT = 1 << 47  # user addresses stay below this; pickle needs a byte more above it
GAP_US = 1000


def fresh(text):
    """An equal string that is a new object, so that pickle writes it out again."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")


def has_address(event):
    # "oom" has device_free in place of addr; "snapshot" has an addr of 0
    return event.get("addr", 0) != 0


def address_shift(snapshot):
    """How far to move each repetition, and the lowest and highest recorded address."""
    low, high = [], []
    for segment in snapshot["segments"]:
        low.append(segment["address"])
        high.append(segment["address"] + segment["total_size"])
    for trace in snapshot["device_traces"]:
        for event in filter(has_address, trace):
            low.append(event["addr"])
            high.append(event["addr"] + event["size"])
    if not low:
        sys.exit("grow.py: the base holds no segments and no events")
    return ((max(high) - min(low)) // GIB + 1) * GIB, min(low), max(high)


def time_shift(snapshot):
    times = [e["time_us"] for trace in snapshot["device_traces"] for e in trace]
    times += [a["time_us"] for a in snapshot.get("external_annotations", [])]
    return max(times) - min(times) + GAP_US


def own_copy(frames, lists):
    """This repetition's copy of a frame list; `lists` maps ids of the base to the copies."""
    copy = lists.get(id(frames))
    if copy is None:
        copy = lists[id(frames)] = frames.copy()
    return copy


def repeat_segment(segment, move, lists):
    new = dict(segment, address=segment["address"] + move)
    if "segment_pool_id" in segment:
        new["segment_pool_id"] = (*segment["segment_pool_id"],)  # a new tuple
    new["blocks"] = [dict(block) for block in segment["blocks"]]
    for block in new["blocks"]:
        if "address" in block:
            block["address"] += move
    for holder in [new, *new["blocks"]]:
        if holder.get("frames"):  # the empty list is one object for all segments and blocks
            holder["frames"] = own_copy(holder["frames"], lists)
    return new


def repeat_trace(trace, move, delay, lists):
    events = []
    for event in trace:
        new = event.copy()
        if has_address(event):
            new["addr"] += move
        new["time_us"] += delay
        if "compile_context" in event:
            new["compile_context"] = fresh(event["compile_context"])
        if "frames" in event:
            new["frames"] = own_copy(event["frames"], lists)
        events.append(new)
    return events


def repeat_annotation(annotation, delay):
    # these are written with new strings each time, all but the keys device and time_us
    new = {}
    for key, value in annotation.items():
        if key not in ("device", "time_us"):
            key = fresh(key)
        new[key] = fresh(value) if isinstance(value, str) else value
    new["time_us"] += delay
    return new


def grow(base, wanted):
    """The base repeated until at least `wanted` events. Repetition 0 is the base itself."""
    recorded = sum(map(len, base["device_traces"]))
    if recorded == 0:
        sys.exit("grow.py: the base holds no events")
    count = max(1, -(-wanted // recorded))
    move, lowest, highest = address_shift(base)
    if highest + (count - 1) * move > ADDRESS_LIMIT:
        move = -move
        if lowest + (count - 1) * move <= 0:
            sys.exit("grow.py: that many repetitions do not fit in 47 bits of address")
    delay = time_shift(base)

    big = dict(base)
    big["segments"] = list(base["segments"])
    big["device_traces"] = [list(trace) for trace in base["device_traces"]]
    if "external_annotations" in base:
        big["external_annotations"] = list(base["external_annotations"])
    for k in range(1, count):
        lists = {}
        big["segments"] += [repeat_segment(s, k * move, lists) for s in base["segments"]]
        for out, trace in zip(big["device_traces"], base["device_traces"]):
            out += repeat_trace(trace, k * move, k * delay, lists)
        if "external_annotations" in base:
            big["external_annotations"] += [repeat_annotation(a, k * delay) for a in base["external_annotations"]]
    big["segments"].sort(key=lambda s: s["address"])
    return big, count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("base", help="a snapshot, .pickle or .pickle.xz")
    parser.add_argument("out")
    parser.add_argument("--events", type=int, required=True, help="at least this many")
    parser.add_argument("--protocol", type=int, default=4, help="of pickle; default 4")
    args = parser.parse_args()

    gc.disable()  # nothing here is cyclic, and the collector would walk every event
    opener = lzma.open if args.base.endswith(".xz") else open
    with opener(args.base, "rb") as file:
        base = pickle.load(file)
    big, count = grow(base, args.events)
    with open(args.out, "wb") as file:
        pickle.dump(big, file, protocol=args.protocol)
        size = file.tell()
    events = sum(map(len, big["device_traces"]))
    times = "1 repetition" if count == 1 else f"{count} repetitions"
    print(f"{args.out}: {times}, {events:,} events, {size:,} bytes")


if __name__ == "__main__":
    main()
