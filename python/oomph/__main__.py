"""The `oomph` command: the same program as the binary, in Python's process."""

import pathlib
import signal
import sys

from oomph import _native


def main() -> int:
    # Python would note Ctrl-C and act on it when the command is over; it is to end at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    arguments = ["oomph", *sys.argv[1:]]
    return _native.run(arguments, sys.executable or None, pathlib.Path(__file__).parent)


if __name__ == "__main__":
    sys.exit(main())
