"""What torch.cuda.memory._snapshot() of a release holds: the same keys, in the same order.

The harness has no Python, so the part that turns C++ structures into dictionaries is written again here, after the
recordings in fixtures/torch.  Times are made up: the real ones would differ from run to run."""

import random

import build

START_US = 1_760_000_000_000_000


def snapshot(release, conf, dump, cut=0):
    """`conf`: the last settings.  `cut`: how many of the oldest events a full ring buffer has lost."""
    minor = build.minor(release)
    frames = []  # one list for all, as in PyTorch, so pickle writes it once
    result = {
        "segments": [segment_dict(minor, s, frames) for s in dump["segments"]],
        "device_traces": [trace(minor, dump["trace"], dump["changes"])[cut:]],
    }
    if minor >= 3:
        result["allocator_settings"] = settings_dict(conf, dump["settings"])
    if minor >= 5:
        result["external_annotations"] = []
    if minor >= 14:
        result["host_segments"] = []
        result["host_traces"] = []
    return result


def segment_dict(minor, segment, frames):
    result = {"device": 0}
    for key in ("address", "total_size", "allocated_size", "active_size", "requested_size", "stream"):
        result[key] = segment[key]
    result["segment_type"] = "large" if segment["is_large"] else "small"
    if minor >= 1:
        result["segment_pool_id"] = tuple(segment["pool"])
        result["is_expandable"] = bool(segment["is_expandable"])
        result["frames"] = frames
    result["blocks"] = blocks = []
    address = segment["address"]
    for size, requested, allocated, active in segment["blocks"]:
        block = {"address": address} if minor >= 1 else {}
        block["size"] = size
        block["requested_size"] = requested
        block["state"] = "active_allocated" if allocated else "active_pending_free" if active else "inactive"
        if minor >= 1:
            block["frames"] = frames
        blocks.append(block)
        address += size
    return result


def sidecar(conf, dump):
    """`rankN.json` of oomph's recorder, as far as it is about the settings."""
    events = trace(0, dump["trace"], dump["changes"], is_timed=True)
    requests = [event["time_us"] for event in events if event["action"] in REQUESTS]
    times = [
        requests[allocations + failed - 1] if allocations + failed else START_US for allocations, failed, _ in dump["changes"]
    ]
    made = sum(event["action"] == "alloc" for event in events)
    changes = [[time, {"0": allocations}, text] for time, (allocations, _, text) in zip(times, dump["changes"])]
    return {"ended": "finished", "allocations": {"0": made}, "settings": {"initial": conf, "changes": changes}}


REQUESTS = ("alloc", "oom")


def trace(minor, events, changes, is_timed=False):
    """A change of the settings takes a microsecond, so that the time shows what came before it."""
    changed_after = {allocations + failed for allocations, failed, _ in changes}
    requests = 0
    clock = random.Random(0)
    now = START_US
    result = []
    for action, address, size, stream, pool in events:
        now += clock.choice((0, 0, 1, 1, 2, 3, 12, 40)) + (action in REQUESTS and requests in changed_after)
        requests += action in REQUESTS
        event = {"action": action, "device_free" if action == "oom" else "addr": address, "size": size, "stream": stream}
        if minor >= 2 or is_timed:
            event["time_us"] = now
        if minor >= 8:
            event["compile_context"] = "N/A"
        if minor >= 10:
            event["user_metadata"] = ""
        if minor >= 12:
            event["pool_id"] = tuple(pool)
        result.append(event)
    return result


FLAGS = (
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "graph_capture_record_stream_reuse",
)


def settings_dict(conf, settings):
    result = {"PYTORCH_CUDA_ALLOC_CONF": conf}
    for key, value in settings.items():
        result[key] = bool(value) if key in FLAGS else value
    result["garbage_collection_threshold"] = float(settings["garbage_collection_threshold"])
    divisions = settings["roundup_power2_divisions"]
    result["roundup_power2_divisions"] = {str(1 << i): d for i, d in enumerate(divisions)}
    return result
