#!/bin/bash
# Stands for the interpreter once: keeps what oomph gives a program on the emulated GPU, for bare runs on the same.
env -0 >"$FIELD_CAPTURE/environment"
cp -r "${PYTHONPATH%%:*}" "$FIELD_CAPTURE/site"
cp -r "${LD_LIBRARY_PATH%%:*}" "$FIELD_CAPTURE/lib"
