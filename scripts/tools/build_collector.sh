#!/bin/sh
# Build the OpenTelemetry Collector that otel-collector/builder.yaml describes.
#
#   scripts/tools/build_collector.sh        a no-op when it was built from this manifest, by this script
#
# Result: .cache/tools/bin/otelcol-laggard
# Needs Go; everything comes from the Go module proxy. About five minutes on two cores the first time.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
manifest="$root/otel-collector/builder.yaml"
tools="$root/.cache/tools"
binary="$tools/bin/otelcol-laggard"
mark="$tools/.built-collector"
builder=go.opentelemetry.io/collector/cmd/builder@v0.158.0

sum=$(cat "$manifest" "$0" | sha256sum)
if [ -x "$binary" ] && [ -e "$mark" ] && [ "$(cat "$mark")" = "$sum" ]; then
    exit 0
fi
command -v go >/dev/null || {
    echo "build_collector: Go is needed (on Debian: apt-get install golang-go), 1.25 or newer" >&2
    exit 1
}
. "$root/scripts/tools/go_builds.sh"
mkdir -p "$tools/bin"
work=$(mktemp -d "$tools/collector.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$manifest" "$work/builder.yaml"
cd "$work"
go run "$builder" --config builder.yaml --skip-compilation
cd build
# Of the ways in which Prometheus' receiver finds targets, those of clouds would add a hundred packages: files, HTTP, DNS and
# Kubernetes are left.
go build -tags remove_all_sd,enable_dns_sd,enable_kubernetes_sd -o "$binary.new" .
mv "$binary.new" "$binary"
echo "$sum" >"$mark"
echo "$binary"
