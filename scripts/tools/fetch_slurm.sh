#!/bin/sh
# Fetch a Slurm for the tests of deploy/slurm: controller, node daemon, commands and munge.
#
#   scripts/tools/fetch_slurm.sh        a no-op when .cache/tools/slurm is there
#
# Debian's packages are unpacked into .cache/tools/slurm, not installed: no service is started and the system stays as it
# is. Needs apt-get and dpkg-deb, and no root.
set -eu

packages="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2"
# What these need and a small system may lack; the names differ by release.
libraries="libhwloc15 libnuma1 liblz4-1 libreadline8 libreadline8t64 libjson-c5"

tools="$(cd "$(dirname "$0")/../.." && pwd)/.cache/tools"
[ ! -d "$tools/slurm" ] || exit 0

fail() {
    echo "fetch_slurm: $1" >&2
    exit 1
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "needs apt-get and dpkg-deb, those of Debian"
[ "$(id -u)" -ne 0 ] || apt-get -qq update || fail "apt-get update failed"

mkdir -p "$tools"
work=$(mktemp -d "$tools/slurm.XXXXXX")
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086  # a list
(cd "$work" && apt-get -qq -o APT::Sandbox::User= download $packages) ||
    fail "apt-get could not download Slurm; run 'apt-get update' as root first"
for library in $libraries; do
    (cd "$work" && apt-get -qq -o APT::Sandbox::User= download "$library" 2>/dev/null) || true
done
for archive in "$work"/*.deb; do
    dpkg-deb --extract "$archive" "$work/unpacked"
done
mv "$work/unpacked" "$tools/slurm"
