"""Puts a program on the emulated GPU without the recorder: what `oomph run` does before `import torch`, less the recording.

FIELD_SITE is a copy of oomph's Python half, under another name, so that `oomph attach` finds no recorder. FIELD_LIBRARY is the
emulated CUDA driver.
"""

import ctypes
import os
import sys


def _prepare():
    # Not on the path of the program, which may print it.
    sys.path.append(os.environ["FIELD_SITE"])
    from oomph_emulated.interpreter.importing import around_import

    sys.path.remove(os.environ["FIELD_SITE"])
    library = []

    def before():
        library.append(ctypes.CDLL(os.environ["FIELD_LIBRARY"], mode=ctypes.RTLD_GLOBAL))

    def after(torch):
        from oomph_emulated.emulation import checkpoint_guard, values

        values.install(library[0])
        checkpoint_guard.install()

    around_import("torch", before=before, after=after)


_prepare()
