"""Device meshes: noted for `oomph`, and made with other dimensions where a layout is tried."""

from __future__ import annotations

import functools
import json
import sys
from types import ModuleType
from typing import Any

from .plan import JobPlan, Note


def install(module: ModuleType, plan: JobPlan, note: Note) -> None:
    """Prepares `torch.distributed.device_mesh`, which has just been imported."""
    if plan.mesh is not None:
        _replace_dimensions(module, plan.mesh, note)
    mesh_class: Any = module.DeviceMesh
    make = mesh_class.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        # Parts of a mesh, and meshes made of its parts, have the dimensions of the whole.
        if getattr(self, "_root_mesh", None) is None:
            text = {
                "names": list(self.mesh_dim_names or ()),
                "shape": list(self.mesh.shape),
                "ranks": self.mesh.flatten().tolist(),
            }
            note("mesh", json.dumps(text))

    mesh_class.__init__ = __init__


def _replace_dimensions(module: ModuleType, wanted: dict[str, int], note: Note) -> None:
    """Has `init_device_mesh` make the dimensions that were asked for instead of the program's, in the program's order."""
    make: Any = module.init_device_mesh

    @functools.wraps(make)
    def init_device_mesh(device_type: str, mesh_shape: Any, *args: Any, mesh_dim_names: Any = None, **kwargs: Any) -> Any:
        names = [str(name) for name in mesh_dim_names or ()]
        if set(wanted) <= set(names) and len(names) > 0:
            shape = tuple(wanted.get(name, 1) for name in names)
            note("layout", " ".join(f"{name}={size}" for name, size in zip(names, shape)))
            mesh_shape = shape
        else:
            note("other_mesh", ", ".join(names) or "a mesh without names")
        return make(device_type, mesh_shape, *args, mesh_dim_names=mesh_dim_names, **kwargs)

    module.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]
    package: Any = sys.modules["torch.distributed"]
    if getattr(package, "init_device_mesh", None) is make:
        package.init_device_mesh = init_device_mesh
