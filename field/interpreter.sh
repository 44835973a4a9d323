#!/bin/bash
# Stands for the interpreter, bare and recorded: the program's output goes to files, so that oomph's own stays apart from it.
printf '%s %s\n' "$$" "$EPOCHREALTIME" >"$FIELD_SIDE/top"
exec "$FIELD_PYTHON" "$@" >"$FIELD_SIDE/stdout" 2>"$FIELD_SIDE/stderr"
