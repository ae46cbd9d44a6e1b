#!/bin/sh
# Fetch newer releases of Prometheus and promtool than the system's, to prove the rules on several versions.
#
#   scripts/tools/fetch_tools.sh            fetch what is missing, print one line for each tool
#
# Result, the contract of the tests:
#   .cache/tools/promtool-VERSION     e.g. promtool-2.53.3
#   .cache/tools/prometheus-VERSION   e.g. prometheus-2.53.3
#   .cache/tools/vmalert-tool         unit tests of rules under VictoriaMetrics
# VERSION is the upstream version. Tests use every promtool-* they find there, beside the promtool on PATH.
#
# The binaries come from the distribution's own packages of later releases, which need no more than the C library.
# They are unpacked, not installed: apt reads a configuration of its own and the system's packages stay as they are.
# The mirror is the one that the machine's apt already uses for Debian. Needs apt, dpkg-deb and no root.
set -eu

suites="trixie sid"
packages="promtool prometheus"

root=$(cd "$(dirname "$0")/../.." && pwd)
tools="$root/.cache/tools"

fail() {
    echo "fetch_tools: $1" >&2
    exit 1
}

# A suite is done when its marker says so; deleting .cache/tools fetches everything anew.
missing=""
for suite in $suites; do
    [ -e "$tools/.fetched-$suite" ] || missing="$missing $suite"
done
if [ -z "$missing" ]; then
    (cd "$tools" && ls -d ./prom*-* ./vmalert-tool)
    exit 0
fi

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    fail "apt-get and dpkg-deb are needed; elsewhere, put promtool-VERSION into $tools by hand"
# shellcheck disable=SC2016  # apt expands these, not the shell
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | head -n 1)
[ -n "$mirror" ] || fail "apt knows no Debian mirror; run 'apt-get update' first"

mkdir -p "$tools"
work=$(mktemp -d "$tools/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
: >"$work/status"

for suite in $missing; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
    cat >"$work/apt.conf" <<EOF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Languages "none";
APT::Update::Post-Invoke-Success "";
APT::Sandbox::User "";
EOF
    APT_CONFIG="$work/apt.conf" apt-get -qq update || fail "apt-get update failed for $suite at $mirror"
    for package in $packages; do
        (cd "$work" && APT_CONFIG="$work/apt.conf" apt-get -qq download "$package") ||
            fail "could not download $package of $suite from $mirror"
        archive=$(ls "$work"/"$package"_*.deb)
        # 3.5.3+ds1-6 of the distribution is 3.5.3 of the project.
        version=$(dpkg-deb --field "$archive" Version | sed 's/[+~-].*//')
        dpkg-deb --extract "$archive" "$work/$package"
        mv "$work/$package/usr/bin/$package" "$tools/$package-$version"
        rm -rf "$archive" "${work:?}/$package"
    done
    if [ "$suite" = sid ]; then
        (cd "$work" && APT_CONFIG="$work/apt.conf" apt-get -qq download victoria-metrics) ||
            fail "could not download victoria-metrics of $suite from $mirror"
        dpkg-deb --extract "$work"/victoria-metrics_*.deb "$work/victoria-metrics"
        mv "$work/victoria-metrics/usr/bin/vmalert-tool" "$tools/vmalert-tool"
    fi
    touch "$tools/.fetched-$suite"
done
(cd "$tools" && ls -d ./prom*-* ./vmalert-tool)
