"""One case as a file, and what to know about it."""

import pickle

import snapshot
import traffic


def make(case):
    """The bytes of the pickle, its label, and the sidecar of a recording, if the settings change."""
    dump = traffic.record(case)
    events = dump["trace"]
    cut = int(case.cut * len(events))
    last = dump["changes"][-1][2] if dump["changes"] else case.conf
    content = pickle.dumps(snapshot.snapshot(case.release, last, dump, cut), protocol=4)
    label = {
        "torch": case.release,
        "seed": case.seed,
        "conf": case.conf,
        "device_total": case.total,
        "used_by_others": case.used,
        "limit": case.limit,
        "cut": cut,
        "events": len(events) - cut,
        "streams": sorted({stream for _, _, _, stream, _ in events}),
        "pools": dump["pools"],
        "tags": tags(case, dump),
        "stats": dump["stats"],
    }
    has_sidecar = dump["changes"] and case.changes == "settings"
    return content, label, snapshot.sidecar(case.conf, dump) if has_sidecar else None


def tags(case, dump):
    """What happened, for choosing cases: settings that were on and events that really occurred."""
    stats, events = dump["stats"], dump["trace"]
    happened = {
        "pools": bool(dump["pools"]),
        "captures": "capture" in dump["scopes"],
        "nested_scopes": "nested" in dump["scopes"],
        "pending": any(waits(events, at) for at, event in enumerate(events) if event[0] == "free_requested"),
        "expandable": "expandable_segments:True" in case.conf or case.changes == "expandable",
        "max_split": "max_split_size_mb" in case.conf,
        "roundup": "roundup_power2_divisions" in case.conf,
        "gc": "garbage_collection_threshold" in case.conf and case.limit is not None,
        "limit": case.limit is not None,
        "retries": stats["num_alloc_retries"] > 0,
        "oom": stats["num_ooms"] > 0,
        "cut": case.cut > 0,
        "changes": bool(dump["changes"]),
        case.special: bool(case.special),
    }
    return [name for name, true in happened.items() if true]


def waits(events, at):
    """A free that is not completed at once."""
    following = events[at + 1] if at + 1 < len(events) else ("",) * 5
    return following[:2] != ["free_completed", events[at][1]]
