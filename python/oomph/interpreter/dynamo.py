"""Functions of ours that `torch.compile` is to leave alone.

While compiled code runs, Dynamo looks at every Python function that is called from code it has skipped, and would compile ours
as well: time lost, and failures that are not the program's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .errors import keep
from .importing import Report, around_import

F = TypeVar("F", bound=Callable[..., Any])


def never_traced(function: F) -> F:
    """Has Dynamo skip a function with everything that it calls; without the wrapper, and the import, of PyTorch's decorator."""
    skip_all(function)
    return function


def skip_all(function: Callable[..., Any]) -> bool:
    """Whether Dynamo skips it now. Before torch 2.7 there is no way to ask for that."""
    try:
        dynamo: Any = torch._C._dynamo.eval_frame
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
    except Exception as error:
        keep(error)
        return False
    return True


def never_compile(package: str, report: Report | None) -> None:
    """Has Dynamo skip every function of a package, as soon as the program has imported Dynamo."""

    def after(rules: Any) -> None:
        rules.add(package)

    around_import("torch._dynamo.trace_rules", after=after, report=report)


_WITH_CALL = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")
"""Modules of Dynamo that know `Module.__call__` as it was when they were imported, as `_CALL`."""
_CALL = "unpatched_nn_module_call"


def know_as_call(function: Callable[..., Any], instead_of: Callable[..., Any]) -> None:
    """Has Dynamo take a function for PyTorch's own `Module.__call__`, which it does not trace. It would trace any other one, and
    compile everything again once that is gone."""
    for name in _WITH_CALL:
        module = sys.modules.get(name)
        if getattr(module, _CALL, None) is instead_of:
            setattr(module, _CALL, function)
