#!/bin/sh
# Build Thanos: receive, ruler and querier for deploy/thanos and its tests.
#
#   scripts/tools/build_thanos.sh        a no-op when this script has built it
#
# Result: .cache/tools/bin/thanos
# Needs Go; everything comes from the Go module proxy. About two minutes on two cores the first time. Newer releases want
# a newer Go.
set -eu

module=github.com/thanos-io/thanos@v0.42.0

root=$(cd "$(dirname "$0")/../.." && pwd)
tools="$root/.cache/tools"
binary="$tools/bin/thanos"
mark="$tools/.built-thanos"

sum=$(sha256sum <"$0")
if [ -x "$binary" ] && [ -e "$mark" ] && [ "$(cat "$mark")" = "$sum" ]; then
    exit 0
fi
command -v go >/dev/null || {
    echo "build_thanos: Go is needed (on Debian: apt-get install golang-go), 1.26 or newer" >&2
    exit 1
}
. "$root/scripts/tools/go_builds.sh"
mkdir -p "$tools/bin"
work=$(mktemp -d "$tools/thanos.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
# Its go.mod has replacements, which `go install` refuses: it is built in a copy of its own folder.
go mod download "$module"
cp -R "$(go env GOMODCACHE)/$module/." .
chmod -R u+w .
# Without slicelabels, which Thanos' own builds have, it panics in its first answer.
go build -tags slicelabels -o "$binary.new" ./cmd/thanos
mv "$binary.new" "$binary"
echo "$sum" >"$mark"
echo "$binary"
