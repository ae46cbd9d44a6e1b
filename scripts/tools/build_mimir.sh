#!/bin/sh
# Build Mimir and mimirtool for the test of deploy/mimir and of the rules in Mimir's form.
#
#   scripts/tools/build_mimir.sh        a no-op when this script has built them
#
# Result: .cache/tools/bin/mimir, .cache/tools/bin/mimirtool
# Needs Go; everything comes from the Go module proxy. About four minutes on two cores the first time. Releases have no
# version that Go's modules know, so it is the newest commit that the proxy has, newer than 3.0.
set -eu

module=github.com/grafana/mimir@v1.3.1-0.20260423142704-aced80d74930

root=$(cd "$(dirname "$0")/../.." && pwd)
tools="$root/.cache/tools"
mark="$tools/.built-mimir"

sum=$(sha256sum <"$0")
if [ -x "$tools/bin/mimir" ] && [ -x "$tools/bin/mimirtool" ] && [ -e "$mark" ] && [ "$(cat "$mark")" = "$sum" ]; then
    exit 0
fi
command -v go >/dev/null || {
    echo "build_mimir: Go is needed (on Debian: apt-get install golang-go), 1.26 or newer" >&2
    exit 1
}
. "$root/scripts/tools/go_builds.sh"
mkdir -p "$tools/bin"
work=$(mktemp -d "$tools/mimir.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
# Its go.mod has replacements, which `go install` refuses: it is built in a copy of its own folder.
go mod download "$module"
cp -R "$(go env GOMODCACHE)/$module/." .
chmod -R u+w .
# The list of a vendor folder that no module has.
rm -rf vendor
for program in mimir mimirtool; do
    # The tags of Mimir's own builds.
    CGO_ENABLED=0 go build -tags netgo,stringlabels -o "$tools/bin/$program.new" "./cmd/$program"
    mv "$tools/bin/$program.new" "$tools/bin/$program"
done
echo "$sum" >"$mark"
echo "$tools/bin/mimir"
