#!/bin/sh
# Build, with the release of Prometheus that lab/evaluation/engine/go.mod names:
#
#   scripts/tools/build_rule_engine.sh        a no-op when it was built from what its source is now
#
#   .cache/tools/bin/laggard-rule-engine   the driver around the rule manager that `make evaluate` runs the rules with
#   .cache/tools/promtool-VERSION          unit tests of rules in that release, for the tests of the rules
#   .cache/tools/prometheus-VERSION        the server, which takes OTLP, for the tests of the Collector's paths
#
# Needs Go; Prometheus comes from the Go module proxy, and so does the Go that its releases are built with, as what the rules
# cost is told of these: its garbage collector and its maps are part of that. Where that Go cannot be had it is the one that
# is here, and the rules cost more. About three minutes on two cores the first time.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
source="$root/lab/evaluation/engine"
tools="$root/.cache/tools"
binary="$tools/bin/laggard-rule-engine"
mark="$tools/.built-prometheus"

# In Prometheus' .promu.yml, with the newest patch.
release=go1.27.3

# By content, as a fresh checkout's files are newer than what a cache has kept.
state() { (cd "$source" && echo "$release" && find . -type f | LC_ALL=C sort | xargs sha256sum) | sha256sum; }
if [ -e "$binary" ] && [ "$(cat "$mark" 2>/dev/null)" = "$(state)" ]; then
    exit 0
fi
command -v go >/dev/null || {
    echo "build_rule_engine: Go is needed (on Debian: apt-get install golang-go), 1.26 or newer" >&2
    exit 1
}
. "$root/scripts/tools/go_builds.sh"
if GOTOOLCHAIN=$release go version >/dev/null 2>&1; then
    export GOTOOLCHAIN=$release
else
    echo "build_rule_engine: $release cannot be had; built with $(go env GOVERSION), with which rules cost more" >&2
fi
mkdir -p "$tools/bin"
cd "$source"
go build -o "$binary" .
echo "$binary"

# promtool's unit tests cannot be imported: their file is laid over our folder.
module=$(go list -m -f '{{.Dir}}' github.com/prometheus/prometheus)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
overlay="$work/overlay.json"
printf '{"Replace": {"%s/promtool/unittest.go": "%s/cmd/promtool/unittest.go"}}' "$source" "$module" >"$overlay"
go build -overlay "$overlay" -o "$tools/promtool-new" ./promtool
version=$("$tools/promtool-new" --version)
promtool="$tools/promtool-${version##* }"
mv "$tools/promtool-new" "$promtool"
echo "$promtool"

# The server needs more modules than the driver: they are written into a copy of go.mod. Without its pages, and without the
# ways to find targets that clouds have.
cp go.mod go.sum "$work"
go build -modfile "$work/go.mod" -tags remove_all_sd -o "$tools/prometheus-new" github.com/prometheus/prometheus/cmd/prometheus
mv "$tools/prometheus-new" "$tools/prometheus-${version##* }"
echo "$tools/prometheus-${version##* }"
# Another Go is asked for again the next time.
[ "${GOTOOLCHAIN:-}" != "$release" ] || state >"$mark"
