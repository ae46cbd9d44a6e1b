#!/bin/sh
# Run tests under the oldest and the newest supported version of Python that this machine has.
#
#   scripts/tests/test_pythons.sh                      the oldest and the newest of 3.10 to 3.15
#   PYTHONS="3.10 3.12" scripts/tests/test_pythons.sh tests/cli/gate
#
# Each version gets an environment of its own in .cache/pythons: laggard with every extra, and no torch, whose own oldest
# and newest release `make test-oldest` and `make test` cover.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"

# Names of versions that pyenv keeps beside the one in use are found through its shims.
if command -v pyenv >/dev/null; then
    PYENV_VERSION=$(pyenv versions --bare | paste -sd:)
    export PYENV_VERSION
fi

if [ $# -eq 0 ]; then
    # What needs no torch, no servers and no rank of its own.
    set -- tests/instrumentation/test_recorder.py tests/instrumentation/test_native.py \
        tests/instrumentation/test_partition.py tests/instrumentation/test_steps.py \
        tests/instrumentation/test_statefile.py tests/instrumentation/test_conventions.py \
        tests/instrumentation/test_budget.py tests/exporter/hang/test_verdict.py \
        tests/exporter/test_flags.py tests/exporter/test_conventions.py tests/exporter/test_exposition.py \
        tests/exporter/nvml/test_xid.py tests/exporter/host tests/cli/test_main.py tests/cli/gate \
        tests/rules/test_pack.py tests/rules/test_render.py \
        --deselect=tests/cli/gate/test_sources.py::test_a_real_training_loop \
        --deselect=tests/rules/test_render.py::test_fast_names_a_straggler_and_a_stall \
        --deselect=tests/rules/test_render.py::test_large_names_a_straggler_and_a_stall \
        --deselect=tests/rules/test_render.py::test_rendered_loads
fi

if [ -z "${PYTHONS:-}" ]; then
    for version in 3.10 3.11 3.12 3.13 3.14 3.15; do
        if "python$version" -c '' 2>/dev/null; then
            oldest=${oldest:-$version}
            newest=$version
        fi
    done
    [ "${oldest:-}" != "${newest:-}" ] || {
        echo "test_pythons: one version of Python is here at most, which make test covers; for more, install such as python3.10"
        exit 0
    }
    PYTHONS="$oldest $newest"
fi

# Sets up the environment of a version and runs the tests in it; ends where one fails.
run() {
    version=$1
    shift
    environment=".cache/pythons/$version"
    sum=$(cat pyproject.toml constraints.txt hatch_build.py instrumentation/laggard/_*.c scripts/tests/test_pythons.sh | sha256sum)
    if [ ! -e "$environment/.installed" ] || [ "$(cat "$environment/.installed")" != "$sum" ]; then
        "python$version" -m venv --clear "$environment"
        scripts/tools/install.sh "$environment" --constraint constraints.txt --editable '.[all]' \
            cryptography hatchling hypothesis pytest pytest-rerunfailures pytest-timeout
        "$environment/bin/python" hatch_build.py
        echo "$sum" >"$environment/.installed"
    fi
    "$environment/bin/python" -c '
import importlib, pkgutil
import laggard, laggard_cli, laggard_exporter
for package in (laggard, laggard_cli, laggard_exporter):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        # What the demo injects into training, and what runs as a process of its own.
        if not module.name.startswith("laggard_cli.demo.fault") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)'
    "$environment/bin/python" -m pytest "$@"
}

# Side by side; what a version prints comes when it has ended. As in make test, what fails is tried once more and listed.
mkdir -p .cache/pythons
trap 'kill 0' INT  # which what runs in the background ignores
running=
for version in $PYTHONS; do
    (run "$version" -p no:cacheprovider --reruns=1 -rR "$@") >".cache/pythons/$version.log" 2>&1 &
    running="$running $version:$!"
done
failed=
for each in $running; do
    version=${each%%:*}
    wait "${each#*:}" || failed="$failed $version"
    echo "python$version"
    cat ".cache/pythons/$version.log"
done
if [ -n "$failed" ]; then
    echo "test_pythons: failed with$failed" >&2
    exit 1
fi
echo "test_pythons: passed with $PYTHONS"
