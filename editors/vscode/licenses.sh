#!/bin/sh
# The licenses of oomph and of the packages that the extension bundles.
set -eu
cat ../../LICENSE-MIT ../../LICENSE-APACHE
npm ls --omit=dev --all --parseable | tail -n +2 | while read -r folder; do
  [ -f "$folder/package.json" ] || continue # what `make` leaves there
  printf '\n\n%s\n\n' "${folder##*node_modules/}"
  cat "$folder"/[Ll][Ii][Cc][Ee][Nn][CcSs][Ee]*
done
