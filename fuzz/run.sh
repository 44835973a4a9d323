#!/bin/sh
# Fuzzes every target (or those named) for a while: fuzz/run.sh [SECONDS [TARGET…]]
# Works with the pinned stable compiler: coverage instrumentation needs no nightly, only permission.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- pickle json raw containers message source

command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
export RUSTC_BOOTSTRAP=1
python3 seed.py
cd ..
for target in "$@"; do
    echo "== $target, $seconds s"
    cargo fuzz run --sanitizer none "$target" -- \
        -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -malloc_limit_mb=512 -timeout=10 \
        -dict=fuzz/words.dict -print_final_stats=1 -verbosity=1
done
