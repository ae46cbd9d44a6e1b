#!/bin/sh
# Make sure that Prometheus and Alertmanager are there, with promtool and amtool.
#
#   scripts/tools/fetch_servers.sh        a no-op when they are on PATH or in .cache/tools/bin
#
# Where they are missing, Debian's packages are unpacked into .cache/tools, not installed: no service is started and
# the system stays as it is. Anywhere else one line says what to install.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
bin="$root/.cache/tools/bin"
home="$root/.cache/tools/alertmanager"
PATH="$bin:$PATH"

fail() {
    echo "fetch_servers: $1" >&2
    exit 1
}

missing() {
    for program in prometheus promtool amtool; do
        command -v "$program" >/dev/null || return 0
    done
    # What an earlier version of this script unpacked lacks its templates.
    [ ! -e "$bin/prometheus-alertmanager" ] || [ -x "$home/program" ] || return 0
    ! command -v alertmanager >/dev/null && ! command -v prometheus-alertmanager >/dev/null
}

missing || exit 0
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    fail "install Prometheus and Alertmanager (prometheus, promtool, alertmanager, amtool) and put them on PATH"
[ "$(id -u)" -ne 0 ] || apt-get -qq update || fail "apt-get update failed"

mkdir -p "$bin"
work=$(mktemp -d "$root/.cache/tools/servers.XXXXXX")
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get -qq -o APT::Sandbox::User= download prometheus prometheus-alertmanager) ||
    fail "apt-get could not download prometheus and prometheus-alertmanager; run 'apt-get update' as root first"
for archive in "$work"/*.deb; do
    dpkg-deb --extract "$archive" "$work/unpacked"
done
for program in prometheus promtool prometheus-alertmanager amtool; do
    mv "$work/unpacked/usr/bin/$program" "$bin/$program"
done

# Debian's Alertmanager reads its templates from a folder of the system, which unpacking does not make. In its place the
# program gets a path of the same length, to a folder that is open when it starts.
templates=/usr/share/prometheus/alertmanager
rm -rf "$home"
mv "$work/unpacked$templates" "$home"
LC_ALL=C sed "s|$templates|/proc/self/fd////////////////////9|g" "$bin/prometheus-alertmanager" >"$home/program"
cat >"$bin/prometheus-alertmanager" <<'END'
#!/bin/sh
home=$(dirname "$0")/../alertmanager
exec 9<"$home"
exec "$home/program" "$@"
END
chmod +x "$home/program" "$bin/prometheus-alertmanager"
missing && fail "the packages of this release lack a program; install Prometheus and Alertmanager by hand" || exit 0
