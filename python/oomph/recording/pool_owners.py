"""Who owns the private pools of PyTorch's allocator: CUDA graphs, compiled functions, `MemPool`s.

Owners are looked for when a snapshot is written, among the objects that are there: nothing is patched.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..interpreter.objects import instances

_MAX_NAMES = 16
"""Compiled functions that are named for one pool."""

PoolId = tuple[int, ...]


def private_pools(snapshot: dict[str, Any]) -> set[PoolId]:
    """Pools of a snapshot's segments, without the default one."""
    return {tuple(segment.get("segment_pool_id", (0, 0))) for segment in snapshot.get("segments", [])} - {(0, 0)}


def pool_owners(pools: set[PoolId]) -> list[dict[str, Any]]:
    """One entry for each pool whose owner is found."""
    if not pools:
        return []
    graphs: dict[PoolId, int] = {}
    for graph in instances(torch.cuda.CUDAGraph):
        pool = _pool(graph)
        graphs[pool] = graphs.get(pool, 0) + 1
    mem_pools = {tuple(of.id) for of in instances(torch.cuda.MemPool)} if hasattr(torch.cuda, "MemPool") else set()
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    managers = instances(trees.CUDAGraphTreeManager) if hasattr(trees, "CUDAGraphTreeManager") else []
    compiled = {tuple(manager.cuda_graphs_thread_pool): _names(manager) for manager in managers}
    owners: list[dict[str, Any]] = []
    for pool in sorted(pools):
        kinds = {"compile": pool in compiled, "mem_pool": pool in mem_pools, "graph": pool in graphs}
        owner = next((kind for kind, is_owner in kinds.items() if is_owner), None)
        if owner is not None:
            owners.append({"id": list(pool), "kind": owner, "graphs": graphs.get(pool, 0), "names": compiled.get(pool, [])})
    return owners


def _pool(graph: Any) -> PoolId:
    try:
        return tuple(graph.pool())
    except RuntimeError:
        return ()  # nothing was captured


def _names(manager: Any) -> list[str]:
    """`[0/1] forward, 3 graphs, float32[64, 1024]` for each function of CUDA graph trees: its compile ID, its pass, and what the
    last of its graphs returns."""
    nodes: dict[Any, list[Any]] = {}
    try:
        waiting = list(manager.get_roots())
        while waiting:
            node = waiting.pop()
            nodes.setdefault(node.wrapped_function.id, []).append(node)
            waiting += [child for children in node.children.values() for child in children]
        return [_name(manager, function, recorded) for function, recorded in list(nodes.items())[:_MAX_NAMES]]
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return []  # another version of PyTorch


def _name(manager: Any, function: Any, recorded: list[Any]) -> str:
    compile_id = getattr(manager, "id_to_compile_id", {}).get(function)
    mode = str(getattr(manager, "id_to_mode", {}).get(function, "")).rpartition(".")[2].lower()
    count = f"{len(recorded)} graph{'' if len(recorded) == 1 else 's'}"
    outputs = [of for of in recorded[-1].outputs_metadata if isinstance(of, dict) and "size" in of]
    largest = max(outputs, key=lambda of: int(of.get("nbytes", 0)), default=None)
    returns = "" if largest is None else f"{str(largest['dtype']).removeprefix('torch.')}{list(largest['size'])}"
    name = ", ".join(part for part in (mode, count, returns) if part)
    return name if compile_id is None else f"[{compile_id}] {name}"
