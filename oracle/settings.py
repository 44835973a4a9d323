"""Which settings strings each release takes, and the blocks they lead to."""

import re

import build
from real import Aborted, Real

MIB = 1 << 20
TOTAL = 2 << 30
REQUESTS = [700, 3000, 4097, 5001, 700_000, 5 * MIB + 1, 33 * MIB, 65 * MIB, 130 * MIB]
LAST_FREED_THEN = 95 * MIB  # the last request is freed, then this is asked for

# What a snapshot says about the settings that decide where blocks go (2.3 and later).
SHOWN = ("max_split_size", "garbage_collection_threshold", "expandable_segments", "roundup_power2_divisions")

NUMBERS = (
    "",
    "20",
    "21",
    "40",
    "40garbage",
    "4 0",
    "40.9",
    "-1",
    "-40",
    "+40",
    "0x40",
    "040",
    "0",
    "1e3",
    "abc",
    " 40",
    "40 ",
    "\t40",
    "40\t",
    "\n40",
    "17592186044415",
    "17592186044416",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
)
FRACTIONS = (
    "",
    "0",
    "0.0",
    "0.000001",
    "0.3",
    ".3",
    "0.3x",
    "0,3",
    "1",
    "1.0",
    "0.999999",
    "1.5",
    "-0.3",
    "3e-1",
    "nan",
    "inf",
    "1e-400",
    "True",
    "30%",
)
BOOLEANS = (
    "",
    "True",
    "False",
    "true",
    "false",
    "TRUE",
    "1",
    "0",
    "yes",
    "True ",
    " True",
    "Tr ue",
    "True\t",
    "None",
)
DIVISIONS = (
    "",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "8",
    "64",
    "65536",
    "-2",
    "4x",
    "x",
    "4.5",
    "4294967296",
    "[]",
    "[",
    "]",
    "[64]",
    "[64:]",
    "[:4]",
    "[64:4",
    "64:4]",
    "[64:4]]",
    "[[64:4]]",
    "[64:4],",
    "[64:4,]",
    "[,64:4]",
    "[1:2]",
    "[1:4]",
    "[2:4]",
    "[4:4]",
    "[64:4]",
    "[64:0]",
    "[64:1]",
    "[64:3]",
    "[63:4]",
    "[0:4]",
    "[-64:4]",
    "[64:-4]",
    "[32:8,64:4]",
    "[64:4,32:8]",
    "[64:4,64:8]",
    "[64:4,>:2]",
    "[>:2,64:4]",
    "[>:2]",
    "[>:0]",
    "[>:3]",
    "[>:2,>:4]",
    "[>2]",
    "[64:4,>]",
    "[64:4;128:2]",
    "[64=4]",
    "[64:4 128:2]",
    "[64:4][128:2]",
    "(64:4)",
    "{64:4}",
    '"4"',
    "[256:1,512:2,1024:4,>:8]",
    "[256:2,64:4,>:8]",
    "[256:0,512:2]",
    "[65536:4]",
    "[32768:4,>:8]",
    "[131072:4]",
    "[1:4,8:8,>:2]",
    "[1:1,2:2,4:4,8:8,16:16,32:32,64:64,128:128]",
    "[ 64 : 4 , > : 2 ]",
    "[64:4,\t>:2]",
    "[1:0,>:4]",
    "[4:2,>:1]",
    "[64:4,128:x]",
    "[x:4]",
    "[64:4x]",
    "[64x:4]",
)
OTHERS = (
    "",
    " ",
    ",",
    ",,",
    ":",
    "::",
    "max_split_size_mb",
    "unknown",
    "unknown:1",
    "Unknown:1",
    "max_split_size_mb:40,unknown:1",
    "unknown:1,max_split_size_mb:40",
    "MAX_SPLIT_SIZE_MB:40",
    "max_split_size:40",
    "max_split_size_mb=40",
    "max_split_size_mb,40",
    "max_split_size_mb 40",
    "max_split_size_mb;40",
    "max_split_size_mb::40",
    ":max_split_size_mb:40",
    ",max_split_size_mb:40",
    "max_split_size_mb:40,",
    "max_split_size_mb:40,,",
    "max_split_size_mb:40:",
    "max_split_size_mb:40;",
    "max_split_size_mb :40",
    " max_split_size_mb:40",
    "max_split_ size_mb:40",
    "\tmax_split_size_mb:40",
    "[max_split_size_mb:40]",
    "max_split_size_mb:[40]",
    '"max_split_size_mb:40"',
    "max_split_size_mb:40,max_split_size_mb:64",
    "max_split_size_mb:64,max_split_size_mb:40",
    "expandable_segments:True,expandable_segments:False",
    "expandable_segments:False,expandable_segments:True",
    "max_split_size_mb:40 garbage_collection_threshold:0.6",
    "max_split_size_mb:40:garbage_collection_threshold:0.6",
    "max_split_size_mb:40;garbage_collection_threshold:0.6",
    "max_split_size_mb:40, garbage_collection_threshold:0.6",
    "max_split_size_mb:40,\tgarbage_collection_threshold:0.6",
    "max_split_size_mb:40,\ngarbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.6,max_split_size_mb:40",
    "expandable_segments:True,max_split_size_mb:40",
    "expandable_segments:True,roundup_power2_divisions:[32:8,>:2]",
    "roundup_power2_divisions:[64:4,>:2],max_split_size_mb:40",
    "roundup_power2_divisions:4,max_split_size_mb:40",
    "roundup_power2_divisions:[64:4,>:2] max_split_size_mb:40",
    "roundup_power2_divisions:4,roundup_power2_divisions:[64:2]",
    "roundup_power2_divisions:[64:2],roundup_power2_divisions:4",
    "roundup_bypass_threshold_mb:40",
    "large_segment_size_mb:32,max_split_size_mb:32",
    "max_split_size_mb:32,large_segment_size_mb:32",
    "large_segment_size_mb:32,max_split_size_mb:31",
    "max_split_size_mb:31,large_segment_size_mb:32",
    "large_segment_size_mb:16,max_split_size_mb:16",
    "max_split_size_mb:16,large_segment_size_mb:16",
    "large_segment_size_mb:12,max_non_split_rounding_mb:12",
    "max_non_split_rounding_mb:12,large_segment_size_mb:12",
    "large_segment_size_mb:32,large_segment_size_mb:64",
    "large_segment_size_mb:32,expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:48",
    "large_segment_size_mb:1000",
    "large_segment_size_mb:3000",
    "max_split_size_mb:40,max_non_split_rounding_mb:40",
    "max_split_size_mb:40,max_non_split_rounding_mb:30",
    "max_split_size_mb:40,max_non_split_rounding_mb:21",
    "max_split_size_mb:64,max_non_split_rounding_mb:100",
    "max_non_split_rounding_mb:40,max_split_size_mb:40",
    "max_split_size_mb:40,large_segment_size_mb:36",
    "per_process_memory_fraction:0.1",
    "per_process_memory_fraction:0.05,garbage_collection_threshold:0.6",
    "backend:native",
    "backend:cudaMallocAsync",
    "backend:",
    "backend",
    "backend:Native",
    "backend:native,max_split_size_mb:40",
    "max_split_size_mb:40,backend:native",
    "backend:native,backend:native",
    "backend: native",
    "backend:cudaMallocAsync,max_split_size_mb:40",
    "backend:hipMallocAsync",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
    "pinned_num_register_threads:1",
    "pinned_num_register_threads:3",
    "pinned_num_register_threads:128",
    "pinned_num_register_threads:256",
    "pinned_num_register_threads:0",
    "pinned_num_register_threads:x",
    "pinned_use_hip_host_register:True",
    "pinned_reserve_segment_size_mb:32",
    "pinned_reserve_segment_size_mb:0",
    "pinned_reserve_segment_size_mb:x",
    "pinned_max_round_threshold_mb:64",
    "pinned_max_round_threshold_mb:0",
    "pinned_max_cached_size_mb:64",
    "pinned_max_cached_size_mb:0",
    "pinned_max_cached_size_mb:x",
    "pinned_max_power2_size_mb:64",
    "release_lock_on_hipmalloc:True",
    "release_lock_on_cudamalloc:True,expandable_segments:True",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.1",
    "enable_accelerator_allocator:True",
    "use_async_allocator:True",
    "host_mem_share_backend:True",
)


def strings():
    values = {
        "max_split_size_mb": NUMBERS,
        "max_non_split_rounding_mb": NUMBERS[:14],
        "large_segment_size_mb": (*NUMBERS[:14], "10", "11", "2"),
        "garbage_collection_threshold": FRACTIONS,
        "per_process_memory_fraction": FRACTIONS,
        "roundup_power2_divisions": DIVISIONS,
        "expandable_segments": BOOLEANS,
    }
    flags = (
        "release_lock_on_cudamalloc",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
        "pinned_use_cuda_host_register",
        "pinned_use_background_threads",
    )
    values.update(dict.fromkeys(flags, ("True", "False", "true", "")))
    return [f"{key}:{value}" for key in values for value in values[key]] + list(OTHERS)


def result(release, conf):
    """What a release makes of a string."""
    entry = {"conf": conf, "accepted": True}
    with Real(release, conf, TOTAL) as real:
        try:
            addresses = [real.alloc(block, size, 0) for block, size in enumerate(REQUESTS)]
            if addresses[-1] is not None:
                real.free(len(REQUESTS) - 1)
            addresses[-1:] = [addresses[-1], real.alloc(len(REQUESTS), LAST_FREED_THEN, 0)]
            dump = real.dump()
        except Aborted as reason:
            if "cudaMallocAsync does not yet support recordHistory" in str(reason):
                return {**entry, "backend": "cudaMallocAsync"}
            return {"conf": conf, "accepted": False, "reason": in_words(str(reason))}
    entry["segments"] = [event[2] for event in dump["trace"] if event[0] in ("segment_alloc", "segment_map")]
    entry["blocks"] = [block[0] for segment in dump["segments"] for block in segment["blocks"]]
    if build.minor(release) >= 3:
        entry["settings"] = {key: dump["settings"][key] for key in SHOWN}
    return entry


def in_words(reason):
    """PyTorch's message without the line of its source, which differs between releases."""
    return re.sub(r"^what\(\): *|\S.* INTERNAL ASSERT FAILED at .*, please report a bug to PyTorch\. ", "", reason)


def table(releases):
    """One row for each string and outcome, with the releases that have this outcome."""
    rows = []
    for conf in strings():
        outcomes = {}
        for release in releases:
            entry = result(release, conf)
            outcomes.setdefault(repr(entry), (entry, []))[1].append(release)
        rows += [{"releases": found, **entry} for entry, found in outcomes.values()]
    return rows
