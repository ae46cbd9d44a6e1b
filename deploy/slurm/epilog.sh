#!/bin/sh
# Epilog of Slurm, as root on each node of a job: what the job's ranks leave in the folder of state files is removed.
#
#   Epilog=/etc/laggard/slurm/epilog.sh        in slurm.conf
#
# It always succeeds: an epilog that fails takes the node out of service.
set -u
# Also after a mistake in the settings, at which the shell itself would end with an error.
trap 'exit 0' EXIT
conf=$(dirname "$0")/laggard.conf
[ -r "$conf" ] || exit 0
. "$conf"

"$command" slurm clean --job "$SLURM_JOB_ID" --state-dir "$state_directory" --jobs "$jobs_directory" \
    --keep "$keep_seconds" 2>&1 | logger --tag laggard-epilog
