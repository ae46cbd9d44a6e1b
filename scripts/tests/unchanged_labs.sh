#!/bin/sh
# What pytest leaves out: the tests of each measuring program, which take minutes, unless the program or its tests changed,
# here or in the last commits. `make test-lab` runs all of them.
set -eu
cd "$(dirname "$0")/../.."
for program in benchmarks chaos evaluation scale; do
    paths="lab/$program tests/$program"
    # shellcheck disable=SC2086 - a list of folders
    { git status --porcelain -- $paths; git log -20 --format= --name-only -- $paths; } | grep -q . ||
        echo "--ignore=tests/$program"
done
