#!/bin/sh
# Smoke test of a source distribution: .github/scripts/test_sdist.sh SDIST
#
# Checks that the archive contains what the build needs and nothing large, builds a wheel from it away from the checkout,
# and tests that wheel. The wheel is built in cargo's dev profile: this checks the contents, not the speed.
# LIST_ONLY=1 stops after the contents.
set -eu

[ $# -eq 1 ] && [ -f "$1" ] || { echo "usage: $0 SDIST" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3}
max_bytes=10000000
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

tar -tzf "$1" >"$scratch/names"
for path in PKG-INFO pyproject.toml Cargo.lock crates/py/Cargo.toml crates/py/build.rs crates/emulator/Cargo.toml crates/tracer/Cargo.toml \
    crates/emulator/build.rs crates/viewer/assets/ python/oomph/__init__.py LICENSE-MIT LICENSE-APACHE; do
    grep -q "^[^/]*/$path" "$scratch/names" || { echo "FAILED: $path is not in $1" >&2; exit 1; }
done
bytes=$(wc -c <"$1" | tr -d ' ')
[ "$bytes" -lt "$max_bytes" ] || { echo "FAILED: $1 has $bytes bytes, the limit is $max_bytes" >&2; exit 1; }
echo "ok: $(basename "$1"), $bytes bytes, $(wc -l <"$scratch/names" | tr -d ' ') files"
[ -z "${LIST_ONLY:-}" ] || exit 0

MATURIN_PEP517_ARGS="--profile dev" "$PYTHON" -m pip wheel --quiet --disable-pip-version-check --no-deps \
    --wheel-dir "$scratch/wheel" "$1"
PYTHON="$PYTHON" sh "$here/test_wheel.sh" "$scratch"/wheel/*.whl
