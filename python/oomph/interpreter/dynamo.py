"""Functions of ours that `torch.compile` is to leave alone.

While compiled code runs, Dynamo looks at every Python function that is called from code it has skipped, and would compile ours
as well: time lost, and failures that are not the program's.
"""

from __future__ import annotations

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
