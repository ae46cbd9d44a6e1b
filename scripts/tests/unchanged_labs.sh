#!/bin/sh
# What pytest leaves out: the tests of each measuring program, which take minutes, unless the program or its tests changed,
# here or in the last forty commits. A clone with fewer commits runs all of them, and so does `make test-lab`.
set -eu
cd "$(dirname "$0")/../.."
for program in benchmarks chaos evaluation scale; do
    paths="lab/$program tests/$program"
    # shellcheck disable=SC2086 - a list of folders
    if [ -z "$(git status --porcelain -- $paths)" ] && git diff --quiet HEAD~40 -- $paths 2>/dev/null; then
        echo "--ignore=tests/$program"
    fi
done
