#!/bin/sh
# Smoke test of a wheel: .github/scripts/test_wheel.sh WHEEL
#
# Installs the wheel alone into an empty environment, without torch, runs the commands a new user runs first, and prints
# the time from installation to the first report. PYTHON selects the interpreter (default: python3, or python on Windows).
# SKIP_PYTEST=1 skips the pytest plugin, the only step that downloads a package.
set -eu

[ $# -eq 1 ] && [ -f "$1" ] || { echo "usage: $0 WHEEL" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
snapshot=$root/fixtures/zoo/leak_infer_outputs.pickle.xz
case $1 in /* | ?:*) wheel=$1 ;; *) wheel=$PWD/$1 ;; esac
[ -n "${PYTHON:-}" ] || { PYTHON=python3 && command -v "$PYTHON" >/dev/null; } || PYTHON=python

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$PYTHON" -m venv "$scratch/env"
bin=$scratch/env/bin
[ -d "$bin" ] || bin=$scratch/env/Scripts # Windows
# Not in the checkout: its folders must not be importable. Nothing of the caller's environment either.
cd "$scratch"
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV OOMPH_EMULATOR_LIB || true
# Windows prints through the console's code page otherwise.
export PYTHONUTF8=1

fail() {
    echo "FAILED: $1" >&2
    exit 1
}
expect() { # expect TEXT COMMAND…: the command succeeds and prints the text
    text=$1
    shift
    "$@" >output.txt 2>&1 || { cat output.txt; fail "exit status of $*"; }
    grep -qF -- "$text" output.txt || { cat output.txt; fail "$* does not print '$text'"; }
    echo "ok: $(basename "$1") $(shift && echo "$*" | tr '\n' ' ' | cut -c 1-100)"
}
now() { "$bin/python" -c 'import time; print(time.monotonic())'; }

"$bin/python" --version
echo "wheel: $(basename "$wheel"), $(wc -c <"$wheel" | tr -d ' ') bytes"
started=$(now)
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
expect "leak_infer_outputs.py:9" "$bin/oomph" report "$snapshot"
finished=$(now)

# Without a pre-release suffix, which Python and cargo write differently (0.2.0rc1, 0.2.0-rc.1).
version=$("$bin/python" -c 'import re; from importlib.metadata import version; print(re.match("[0-9.]*[0-9]", version("oomph"))[0])')
expect "oomph $version" "$bin/oomph" --version
expect "oomph $version" "$bin/python" -m oomph --version
expect "leak_infer_outputs.py:9" "$bin/python" -m oomph report "$snapshot"
expect "$version" "$bin/python" -c 'import oomph; print(oomph.__version__)'
expect '"findings"' "$bin/oomph" report --json "$snapshot"
expect "leak" "$bin/python" -c 'import oomph, sys; print(oomph.load(sys.argv[1]).findings[0].kind)' "$snapshot"
expect "no torch" "$bin/python" -c '
import importlib.util, oomph, sys
assert importlib.util.find_spec("torch") is None, "torch is installed"
assert "torch" not in sys.modules
print("no torch")'
# Only glibc wheels for Linux contain the CUDA emulator and the tracer; PyTorch has no CUDA builds for the other platforms.
case $wheel in
*manylinux* | *-linux_*) expect "emulator" "$bin/python" -c '
import oomph, pathlib
folder = pathlib.Path(oomph.__file__).parent
assert (folder / "liboomph_emulator.so").is_file() and (folder / "liboomph_tracer.so").is_file(), "not in the wheel"
print("emulator")' ;;
esac

if [ -z "${SKIP_PYTEST:-}" ]; then
    "$bin/python" -m pip install --quiet --disable-pip-version-check pytest
    # By its entry point: `-p oomph.pytest_plugin` would register the installed plugin twice.
    expect "pytest" "$bin/python" -m pytest -p oomph --version
    expect "oomph_device" "$bin/python" -m pytest -p oomph --help
    expect "gpu_memory" "$bin/python" -m pytest --markers
fi

seconds=$("$bin/python" -c 'import sys; print(f"{float(sys.argv[2]) - float(sys.argv[1]):.1f}")' "$started" "$finished")
[ -n "$seconds" ] || fail "no time from installation to the first report"
echo "installation to first report: $seconds s"
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    echo "- \`$(basename "$wheel")\`, $("$bin/python" --version): installation to first report $seconds s" >>"$GITHUB_STEP_SUMMARY"
fi
