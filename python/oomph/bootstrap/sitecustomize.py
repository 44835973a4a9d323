"""Loaded by every Python process of a run that oomph has started (its folder is first on PYTHONPATH).

Afterwards the process is as Python would have made it: our folder is not on `sys.path`, and `sitecustomize` is the site's own
module, or missing if there is none.
"""

import os
import sys


def _prepare() -> None:
    try:
        from oomph_child.bootstrap import start

        start.prepare()
    except Exception as error:  # the program runs all the same; oomph sees that nothing was recorded
        print(f"oomph: could not prepare this process: {type(error).__name__}: {error}", file=sys.stderr)


def _leave() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.path_importer_cache.pop(here, None)


def _site_module() -> None:
    """Replaces this module by the site's own `sitecustomize`, which ours hides.

    Exceptions are Python's to handle, also that there is no such module: `site` expects both.
    """
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_prepare()
_leave()
_site_module()
