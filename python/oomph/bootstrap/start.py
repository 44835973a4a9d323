"""Prepares a process before the user's program begins: everything waits for `import torch`.

The CUDA emulator has to be in the process before torch's own libraries, and the recorder has to be there before the
first allocation. Both start with the import of torch, so a process that never imports it is left alone.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from types import ModuleType

from ..interpreter.importing import around_import
from ..job import launchers
from ..job.plan import JobPlan
from ..recording.driver_trace import DriverTrace
from . import lifeline, one_copy, template
from .settings import Settings


def _settings() -> Settings | None:
    settings = Settings.from_environment()
    return template.serve(settings) if settings is not None and settings.is_template else settings


def prepare() -> None:
    settings = _settings()
    if settings is None:
        return
    settings.note("prepared", "")
    if settings.lifeline is not None:
        lifeline.hold(settings.lifeline)
    if settings.job is not None:
        launchers.install(JobPlan(**settings.job), settings.note, settings.report_problem)
    library: list[ctypes.CDLL] = []
    trace: list[DriverTrace] = []

    def before() -> None:
        if settings.tracer is not None and not trace:
            trace.append(DriverTrace(settings.tracer))
            if not trace[0].is_on:
                settings.report_problem("calls of the CUDA driver are not counted: libcuda.so.1 cannot be loaded or redirected")
        if settings.library is not None and not library:
            library.append(ctypes.CDLL(settings.library, mode=ctypes.RTLD_GLOBAL))

    def after(torch: ModuleType) -> None:
        if library and torch.version.cuda is None:
            text = f"torch {torch.__version__} is a build without CUDA; install the CUDA build (no GPU is needed)"
            settings.note("failure", text)
        install = import_module(f"{one_copy.package()}.bootstrap.install")
        install.install(settings, library[0] if library else None, trace[0] if trace and trace[0].is_on else None)

    around_import("torch", before=before, after=after, report=settings.report_problem)
