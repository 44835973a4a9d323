"""Host memory as Linux counts it: of a process, of /dev/shm, of the control group, of the machine.

Everything is read from files of the kernel. What a system does not have is left out.
"""

from __future__ import annotations

import os

from ..interpreter.descriptors import out_of_the_way

_MAX_FILE_BYTES = 1 << 18
_MINOR_FAULTS = 7
"""Where `/proc/PID/stat` has them, counted from the field after the name."""
_NO_LIMIT = 1 << 60
"""A limit of a control group of version 1 that nobody has set is a little less than 2**63."""


def process(pid: int, root: str = "/proc") -> dict[str, int] | None:
    """Resident bytes of a process (`rss`) and those of them in shared memory (`shmem`); nothing if it has ended."""
    status = _table(f"{root}/{pid}/status")
    if "VmRSS" not in status:
        return None
    return {"rss": status["VmRSS"], "shmem": status.get("RssShmem", 0)}


def private(pid: int, root: str = "/proc") -> int | None:
    """Bytes that no other process maps. The kernel goes through all pages of the process for it: 30 ms for each GiB."""
    rollup = _table(f"{root}/{pid}/smaps_rollup")
    if "Private_Dirty" not in rollup:
        return None
    return rollup["Private_Dirty"] + rollup.get("Private_Clean", 0)


def faulted(pid: int, root: str = "/proc") -> int | None:
    """Bytes of the pages that a process has touched for the first time or copied so far: its minor page faults."""
    _, _, fields = _read(f"{root}/{pid}/stat").rpartition(")")
    faults = fields.split()[_MINOR_FAULTS : _MINOR_FAULTS + 1]
    # Kernels that do not count them write 0.
    return int(faults[0]) * os.sysconf("SC_PAGE_SIZE") if faults and faults[0].isdigit() and faults[0] != "0" else None


def machine(root: str = "/proc") -> dict[str, int] | None:
    """Bytes of the machine, and those that are still to be had without swapping."""
    memory = _table(f"{root}/meminfo")
    if "MemTotal" not in memory or "MemAvailable" not in memory:
        return None
    return {"total": memory["MemTotal"], "available": memory["MemAvailable"]}


def shared_memory(folder: str = "/dev/shm") -> dict[str, int] | None:
    """Size and free bytes of the file system that PyTorch and multiprocessing share tensors in."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return {"size": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def control_group(root: str = "/proc", mount: str = "/sys/fs/cgroup") -> dict[str, int] | None:
    """The tightest memory limit of the control groups around this process, and what is used of it without the page cache, which
    the kernel drops before it kills anything."""
    found = [group for group in (_group(folder) for folder in _folders(root, mount)) if group is not None]
    return min(found, key=lambda group: group["limit"] - group["used"], default=None)


def _folders(root: str, mount: str) -> list[str]:
    """Folders of the control groups around this process, from the innermost one outwards, of version 2 and of version 1. In a
    container the path may be that of the host; then only its last folder is there, as the root."""
    folders: list[str] = []
    for line in _read(f"{root}/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or "memory" in controllers.split(","):
            top = mount if number == "0" else f"{mount}/memory"
            parts = [part for part in path.split("/") if part]
            folders += ["/".join([top, *parts[:end]]) for end in range(len(parts), -1, -1)]
    return folders


def _group(folder: str) -> dict[str, int] | None:
    for limit_file, usage_file, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        limit, usage = _read(f"{folder}/{limit_file}").strip(), _read(f"{folder}/{usage_file}").strip()
        if limit.isdigit() and usage.isdigit() and int(limit) < _NO_LIMIT:
            pairs = [line.split() for line in _read(f"{folder}/memory.stat").splitlines()]
            stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
            cached = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
            return {"limit": int(limit), "used": max(0, int(usage) - cached)}
    return None


def _table(path: str) -> dict[str, int]:
    """`Name:  12 kB` of each line, in bytes."""
    rows = [line.split() for line in _read(path).splitlines()]
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) == 3 and row[2] == "kB" and row[1].isdigit()}


def _read(path: str) -> str:
    """The content of a file; empty if there is none."""
    try:
        descriptor = out_of_the_way(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            return os.read(descriptor, _MAX_FILE_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""
