#!/bin/sh
# Prolog of Slurm, as root on each node of a job: the folder of the ranks' state files, and a note of the job.
#
#   Prolog=/etc/laggard/slurm/prolog.sh        in slurm.conf
#
# It always succeeds: a prolog that fails takes the node out of service.
set -u
# Also after a mistake in the settings, at which the shell itself would end with an error.
trap 'exit 0' EXIT
conf=$(dirname "$0")/laggard.conf
[ -r "$conf" ] || exit 0
. "$conf"

# Any user's ranks write there; the sticky bit keeps each from the others' files.
[ -d "$state_directory" ] || mkdir -p -m 1777 "$state_directory"
# Nobody but root writes there, so no user can put a link or another's file in the way.
[ -d "$jobs_directory" ] || mkdir -p -m 0755 "$jobs_directory"
# The job's user writes the names of its runs into the note.
note=$jobs_directory/$SLURM_JOB_ID
rm -f "$note"
touch "$note" && chown "$SLURM_JOB_UID" "$note" && chmod 0644 "$note"
