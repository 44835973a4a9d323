#!/bin/sh
# Builds the stand-alone program and packs it: .github/scripts/build_archive.sh TARGET [FOLDER]
#
# TARGET is a Rust target triple; the archive oomph-TARGET.tar.gz (.zip for Windows) goes into FOLDER (default: archives).
# On Linux with glibc the CUDA emulator is packed next to the program, where `oomph predict` looks for it.
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
emulator=
set -- --package oomph-cli --bin oomph
case $target in
*-windows-*) program=oomph.exe ;;
*-linux-gnu) emulator=liboomph_emulator.so ;;
esac
if [ -z "${SKIP_BUILD:-}" ]; then
    cargo build --profile dist --locked --target "$target" "$@"
    [ -z "$emulator" ] || cargo build --profile dist --locked --target "$target" --package oomph-emulator --lib
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/$name"
cp "$dist/$program" LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md "$scratch/$name/"
[ -z "$emulator" ] || cp "$dist/$emulator" "$scratch/$name/"
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
