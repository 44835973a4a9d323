#!/bin/sh
# Builds the stand-alone program and packs it: .github/scripts/build_archive.sh TARGET [FOLDER]
#
# TARGET is a Rust target triple; the archive oomph-TARGET.tar.gz (.zip for Windows) goes into FOLDER (default: archives).
# On Linux with glibc the libraries for programs (the CUDA emulator, the tracer) are packed next to the program, which looks
# for them there.
# SKIP_BUILD=1 packs what is in target/TARGET/dist already.
set -eu

[ $# -ge 1 ] || { echo "usage: $0 TARGET [FOLDER]" >&2; exit 2; }
target=$1
cd "$(dirname "$0")/../.."
mkdir -p "${2:-archives}"
folder=$(cd "${2:-archives}" && pwd)
dist=target/$target/dist
name=oomph-$target

program=oomph
libraries=
set -- --package oomph-cli --bin oomph
case $target in
*-windows-*) program=oomph.exe ;;
*-linux-gnu) libraries="emulator tracer" ;;
esac
if [ -z "${SKIP_BUILD:-}" ]; then
    cargo build --profile dist --locked --target "$target" "$@"
    for library in $libraries; do
        cargo build --profile dist --locked --target "$target" --package "oomph-$library" --lib
    done
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/$name"
cp "$dist/$program" LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md "$scratch/$name/"
for library in $libraries; do cp "$dist/liboomph_$library.so" "$scratch/$name/"; done
case $target in
*-windows-*)
    archive=$name.zip
    # 7-Zip is on GitHub's Windows machines; zip is not.
    (cd "$scratch" && if command -v 7z >/dev/null; then 7z a -bso0 "$archive" "$name"; else zip -qr "$archive" "$name"; fi)
    ;;
*)
    archive=$name.tar.gz
    tar -czf "$scratch/$archive" -C "$scratch" "$name"
    ;;
esac
mv "$scratch/$archive" "$folder/"
echo "$folder/$archive"
