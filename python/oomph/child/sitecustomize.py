"""Loaded by every Python process of a run that oomph has started (its folder is first on PYTHONPATH)."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _next_sitecustomize() -> None:
    """Runs the site's own file of this name, which ours hides."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    import oomph_child.child.start
except Exception as error:  # the program runs all the same; oomph sees that nothing was recorded
    print(f"oomph: could not prepare this process: {error}", file=sys.stderr)
else:
    oomph_child.child.start.prepare()

_next_sitecustomize()
