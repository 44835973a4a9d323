"""What a program sees of itself: arguments, path, flags, frames, warnings; started in every way that Python has."""

PROGRAM = {
    "variants": {
        "script": {"arguments": ["--epochs", "1"]},
        "absolute": {"command": ["{work}/{script}"]},
        "module": {"command": ["-m", "introspection", "--epochs", "1"]},
        "code": {"command": ["-c", "import runpy, sys; print(sys.argv); runpy.run_path('introspection.py', run_name='__main__')", "one"]},
        "flags": {"command": ["-X", "dev", "-W", "ignore", "-u", "{script}"]},
        "runpy": {"command": ["-m", "runpy", "introspection"]},
    },
}

import os
import sys
import warnings

import probe
import torch

torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2, device="cuda"))
print(sys.argv, sys.orig_argv[1:])
print(__file__, __name__, __spec__ and __spec__.name, globals().get("__package__"))
print(repr(sys.path[0]), os.path.basename(sys.executable), sys.flags, sys.warnoptions)
print(len(warnings.filters), warnings.showwarning.__module__, sys.dont_write_bytecode, sys.getrecursionlimit())
print(sys._getframe().f_back is None, sys.stdout.line_buffering, sys.stderr.encoding, sys.displayhook is sys.__displayhook__)
print(vars(sys.modules["__main__"]).get("__builtins__") is not None, sys.modules["__main__"].__name__)
warnings.warn("a warning of the program's own")
print(__import__("logging").getLogger().handlers, __import__("locale").getlocale())
probe.done()
