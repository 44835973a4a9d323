"""Dimensions of parallelism (data, tensor, pipeline, context, expert), and this process's index in each.

They are read from what the program has made: DeviceMesh, Megatron-Core, DeepSpeed, or process groups with a description. No
module is imported here that the program has not imported, and no function is called that communicates.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..interpreter.errors import keep
from ..interpreter.objects import instances

_MAX_DIMENSIONS = 16
_MAX_NAME = 64
"""Bounds on what is noted: dimensions, and characters of a name."""

_MEGATRON = "megatron.core.parallel_state"
_MEGATRON_NAMES = {
    "pp": ("pipeline_model_parallel", "pipe_parallel"),
    "dp": ("data_parallel",),
    "cp": ("context_parallel", "sequence_parallel"),
    "ep": ("expert_model_parallel",),
    "tp": ("tensor_model_parallel", "model_parallel", "slice_parallel"),
}
"""`get_NAME_rank` and `get_NAME_world_size` of Megatron-Core; then those of other objects that DeepSpeed takes as `mpu`."""
_DEEPSPEED_AXES = {"pipe": "pp", "data": "dp", "model": "tp"}

_UNNAMED = ("", "undefined", "default_pg")
_MESH_GROUP = "mesh_"
"""What PyTorch calls the groups that nobody has described, and those of a DeviceMesh."""


@dataclass(frozen=True)
class Dimension:
    name: str
    index: int
    size: int
    ranks: frozenset[int] = frozenset()
    """Ranks that differ from this one in this dimension only, and this one; empty if unknown."""

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name[:_MAX_NAME], "index": self.index, "size": self.size}


def groups() -> dict[Any, Any]:
    """Process groups that this process is in, each with the ranks of its members; empty without torch.distributed."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    found = getattr(getattr(module, "_world", None), "pg_group_ranks", None)
    return found if isinstance(found, dict) else {}


def dimensions() -> list[dict[str, Any]]:
    """Dimensions with more than one index, outermost first."""
    framework = _megatron(sys.modules.get(_MEGATRON)) or _deepspeed()
    made = _of_meshes()
    known = {dimension.name for dimension in framework}
    found = framework + [dimension for dimension in made if dimension.name not in known]
    # The groups of Megatron and DeepSpeed have descriptions too, but not all of them are dimensions.
    if not framework:
        found += _of_descriptions(found)
    return [dimension.as_json() for dimension in found[:_MAX_DIMENSIONS]]


def _of_meshes() -> list[Dimension]:
    """Dimensions of every DeviceMesh, without those that are made of others (flattened, or the whole world before it was
    divided): they would tell the same twice."""
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    meshes = [_of_mesh(mesh) for mesh in _instances(kind)]
    meshes.sort(key=lambda mesh: (-len(mesh), -math.prod(each.size for each in mesh), [each.name for each in mesh]))
    found: dict[str, Dimension] = {}
    seen: list[list[Dimension]] = []
    for mesh in meshes:
        for dimension in mesh:
            if dimension.size > 1 and dimension.name not in found and not any(_is_made_of(dimension, of) for of in seen):
                found[dimension.name] = dimension
        seen.append(mesh)
    return list(found.values())


def _of_mesh(mesh: Any) -> list[Dimension]:
    """Empty if this process is not part of the mesh."""
    try:
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return []
        shape, names = tuple(mesh.shape), mesh.mesh_dim_names
        if not names and len(shape) == 1:
            return []  # the rank once more, under no name
        names = names or [f"dim{number}" for number in range(len(shape))]
        return [
            Dimension(str(name), int(index), int(size), _members(mesh, number))
            for number, (name, index, size) in enumerate(zip(names, coordinate, shape))
        ]
    except Exception as error:
        keep(error)
        return []


def _members(mesh: Any, number: int) -> frozenset[int]:
    try:
        return frozenset(groups()[mesh.get_group(number)])
    except Exception as error:  # a mesh without groups of its own
        keep(error)
        return frozenset()


def _is_made_of(dimension: Dimension, others: list[Dimension]) -> bool:
    parts = [other for other in others if other.ranks and other.ranks <= dimension.ranks]
    return bool(parts) and math.prod(part.size for part in parts) == dimension.size


def _instances(kind: Any) -> list[Any]:
    return instances(kind) if isinstance(kind, type) else []


def _megatron(state: Any) -> list[Dimension]:
    """From an object with the functions of `megatron.core.parallel_state`."""
    if state is None:
        return []
    found = []
    for name, words in _MEGATRON_NAMES.items():
        for word in words:
            index, size = _asked(state, f"get_{word}_rank"), _asked(state, f"get_{word}_world_size")
            if index is not None and size is not None:
                if size > 1:
                    found.append(Dimension(name, index, size))
                break
    return found


def _asked(state: Any, function: str) -> int | None:
    """`None` if the groups do not exist, or no longer."""
    try:
        answer = getattr(state, function)()
        return int(answer) if isinstance(answer, int) and answer >= 0 else None
    except Exception as error:
        keep(error)
        return None


def _deepspeed() -> list[Dimension]:
    """From the topology of a pipeline, the `mpu` that DeepSpeed was given, and its groups of experts.

    Only its variables are read: its functions make a process group when they find none, which communicates.
    """
    groups_module = sys.modules.get("deepspeed.utils.groups")
    if groups_module is None:
        return []
    topology = sys.modules.get("deepspeed.runtime.pipe.topology")
    found = [each for grid in _instances(getattr(topology, "PipelineParallelGrid", None)) for each in _of_grid(grid)]
    found = found or _megatron(getattr(groups_module, "mpu", None))
    experts = getattr(groups_module, "_EXPERT_PARALLEL_GROUP", None)
    if isinstance(experts, dict):
        found += _largest("ep", experts.values())
    first: dict[str, Dimension] = {}
    for each in found:
        first.setdefault(each.name, each)
    return list(first.values())


def _of_grid(grid: Any) -> list[Dimension]:
    try:
        topology = grid._topo
        coordinate = topology.get_coord(rank=torch.distributed.get_rank())
        sizes = {axis: int(topology.get_dim(axis)) for axis in topology.get_axis_names()}
        return [
            Dimension(_DEEPSPEED_AXES.get(axis, str(axis)), int(getattr(coordinate, axis)), size)
            for axis, size in sizes.items()
            if size > 1
        ]
    except Exception as error:
        keep(error)
        return []


def _largest(name: str, among: Iterable[Any]) -> list[Dimension]:
    """The largest of some process groups, as a dimension."""
    found = [_of_group(name, groups()[group]) for group in among if group in groups()]
    found = [each for each in found if each.size > 1]
    return [max(found, key=lambda each: each.size)] if found else []


def _of_group(name: str, ranks: dict[int, int]) -> Dimension:
    return Dimension(name, ranks.get(torch.distributed.get_rank(), 0), len(ranks), frozenset(ranks))


def _of_descriptions(known: list[Dimension]) -> list[Dimension]:
    """Process groups that the program has given a description."""
    world = torch.distributed.get_world_size()
    found: dict[str, Dimension] = {}
    for group, ranks in list(groups().items()):
        name = str(getattr(group, "group_desc", ""))
        if name in _UNNAMED or name.startswith(_MESH_GROUP) or not 1 < len(ranks) < world:
            continue
        dimension = _of_group(name, ranks)
        is_known = any(name == each.name for each in known) or _is_made_of(dimension, known)
        if not is_known and torch.distributed.get_rank() in ranks:
            found.setdefault(name, dimension)
    return list(found.values())
