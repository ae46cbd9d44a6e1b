#!/bin/sh
# Run a command on the processor time that others leave idle: what has no deadline of its own, beside what has.
#
#   scripts/tests/patiently.sh COMMAND [ARGUMENT ...]
#
# Ends with the command's status, and ends the command when it is told to end.
set -eu

# Where the kernel divides processors between sessions first, how nice a process is counts within its session only:
# so it gets a session of its own, which is as nice.
if [ -w /proc/self/autogroup ] && command -v setsid >/dev/null; then
    setsid sh -c 'echo 19 >/proc/self/autogroup; exec nice -n 19 "$@"' sh "$@" &
    group=-$!
else
    nice -n 19 "$@" &
    group=$!
fi
trap 'kill -TERM "$group"' INT TERM HUP
wait "${group#-}"
