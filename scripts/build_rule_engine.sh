#!/bin/sh
# Build the driver around Prometheus' rule manager that `make evaluate` runs the rules with.
#
#   scripts/build_rule_engine.sh        a no-op when .cache/tools/bin/laggard-rule-engine is newer than its source
#
# Needs Go; Prometheus comes from the Go module proxy. About two minutes on two cores the first time.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
source="$root/evaluation/engine"
binary="$root/.cache/tools/bin/laggard-rule-engine"

if [ -e "$binary" ] && [ -z "$(find "$source" -newer "$binary" -type f)" ]; then
    exit 0
fi
command -v go >/dev/null || {
    echo "build_rule_engine: Go is needed (on Debian: apt-get install golang-go), 1.26 or newer" >&2
    exit 1
}
mkdir -p "$(dirname "$binary")"
cd "$source"
# The symbol tables would double the size of the file.
GOFLAGS=-mod=mod go build -buildvcs=false -ldflags '-s -w' -trimpath -o "$binary" .
echo "$binary"
