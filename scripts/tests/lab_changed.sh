#!/bin/sh
# Whether what only measures has changed, here or in the last commits: its own tests take minutes, and run then.
set -eu
cd "$(dirname "$0")/../.."
paths='lab tests/benchmarks tests/chaos tests/evaluation tests/scale'
# shellcheck disable=SC2086 - a list of folders
{ git status --porcelain -- $paths; git log -20 --format= --name-only -- $paths; } | grep -q .
