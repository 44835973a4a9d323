"""Why a PyTorch job ran out of GPU memory, and which line to change.

    import oomph
    snapshot = oomph.load("snapshot.pickle")
    print(snapshot.report())

Nothing is imported before it is used: `import oomph` costs a training program nothing, and torch is needed for recording only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oomph._native import VERSION as __version__
    from oomph._native import Table as Table
    from oomph.answers import Answer as Answer
    from oomph.answers import Check as Check
    from oomph.answers import Device as Device
    from oomph.answers import Difference as Difference
    from oomph.answers import Finding as Finding
    from oomph.answers import Fleet as Fleet
    from oomph.answers import Group as Group
    from oomph.answers import Holders as Holders
    from oomph.answers import Level as Level
    from oomph.answers import Peak as Peak
    from oomph.answers import Prediction as Prediction
    from oomph.answers import Report as Report
    from oomph.answers import Search as Search
    from oomph.answers import Simulation as Simulation
    from oomph.answers import Site as Site
    from oomph.answers import Verification as Verification
    from oomph.fleet import fleet as fleet
    from oomph.holders import holders as holders
    from oomph.leaks import check_leaks as check_leaks
    from oomph.notebook.magics import load_ipython_extension as load_ipython_extension
    from oomph.notebook.magics import unload_ipython_extension as unload_ipython_extension
    from oomph.prediction import predict as predict
    from oomph.recording.alarm import Leak as Leak
    from oomph.recording.alarm import MemoryGrows as MemoryGrows
    from oomph.recording.api import Recording as Recording
    from oomph.recording.api import phase as phase
    from oomph.recording.api import record as record
    from oomph.snapshot import Snapshot as Snapshot
    from oomph.snapshot import load as load

# Where each name is defined.
_HOMES = {
    "oomph._native": ["Table"],
    "oomph.answers": [
        "Answer",
        "Check",
        "Device",
        "Difference",
        "Finding",
        "Fleet",
        "Group",
        "Holders",
        "Level",
        "Peak",
        "Prediction",
        "Report",
        "Search",
        "Simulation",
        "Site",
        "Verification",
    ],
    "oomph.fleet": ["fleet"],
    "oomph.holders": ["holders"],
    "oomph.leaks": ["check_leaks"],
    "oomph.notebook.magics": ["load_ipython_extension", "unload_ipython_extension"],
    "oomph.prediction": ["predict"],
    "oomph.recording.alarm": ["Leak", "MemoryGrows"],
    "oomph.recording.api": ["Recording", "phase", "record"],
    "oomph.snapshot": ["Snapshot", "load"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = import_module("oomph._native").VERSION
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
