#!/bin/sh
# TaskProlog of Slurm, as the job's user before each task: instruments tasks whose scripts know nothing of laggard.
#
#   TaskProlog=/etc/laggard/slurm/task-prolog.sh        in slurm.conf
#
# A job asks for it by its environment, LAGGARD=on sbatch train.sbatch, or is on one of the partitions of laggard.conf and
# does not say LAGGARD=off. Not by --comment: a task would have to ask slurmctld for it, each one of a job of thousands.
# Slurm adds what is printed as "export NAME=value" to the task's environment, and shows what follows "print".
# It always succeeds: a task whose prolog fails is not started.
set -u
# Also after a mistake in the settings, at which the shell itself would end with an error.
trap 'exit 0' EXIT
conf=$(dirname "$0")/laggard.conf
[ -r "$conf" ] || exit 0
. "$conf"

say() {
    [ "${SLURM_PROCID:-0}" != 0 ] || echo "print laggard: $1"
}

# What the task has already stays.
default() {
    eval "[ -n \"\${$1+set}\" ]" && return
    eval "$1=\$2"
    echo "export $1=$2"
}

# The run's name without its step, for the epilog: only a task knows its array, and what the user calls the run.
note=$jobs_directory/$SLURM_JOB_ID
if [ -w "$note" ]; then
    array=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    echo "${LAGGARD_RUN:-slurm-${array:-$SLURM_JOB_ID}}" >>"$note"
fi

start=$home/opentelemetry/instrumentation/auto_instrumentation
case ${LAGGARD:-} in
on) ;;
off)
    # A step of an instrumented job has what the batch script's environment had.
    case ${PYTHONPATH:-} in
    "$start:$home") echo "unset PYTHONPATH" ;;
    "$start:$home:"*) echo "export PYTHONPATH=${PYTHONPATH#"$start:$home:"}" ;;
    esac
    exit 0
    ;;
'') case " $partitions " in *" ${SLURM_JOB_PARTITION:-} "*) ;; *) exit 0 ;; esac ;;
*)
    say "LAGGARD=$LAGGARD is neither on nor off; this job is not instrumented"
    exit 0
    ;;
esac

if [ ! -d "$start" ]; then
    say "$home has no packages (pip install --target $home 'laggard[otel]'); this job is not instrumented"
    exit 0
fi
case ":${PYTHONPATH:-}:" in
*":$start:"*) ;;
*) echo "export PYTHONPATH=$start:$home${PYTHONPATH:+:$PYTHONPATH}" ;;
esac

default LAGGARD_STATE_DIR "$state_directory"
# Slurm's account is who the job belongs to.
[ -z "${SLURM_JOB_ACCOUNT:-}" ] || default LAGGARD_TEAM "$SLURM_JOB_ACCOUNT"
for pair in $variables; do
    default "${pair%%=*}" "${pair#*=}"
done
# As `laggard run` has it: to a collector where one is named, else for Prometheus to fetch.
if [ -n "${OTEL_EXPORTER_OTLP_ENDPOINT+set}${OTEL_EXPORTER_OTLP_METRICS_ENDPOINT+set}" ]; then
    default OTEL_METRICS_EXPORTER otlp
    default OTEL_TRACES_EXPORTER otlp
    default OTEL_METRIC_EXPORT_INTERVAL 15000
    default OTEL_EXPORTER_OTLP_TIMEOUT 3
fi
default OTEL_METRICS_EXPORTER laggard_prometheus
default OTEL_TRACES_EXPORTER none
default OTEL_LOGS_EXPORTER none
default OTEL_SERVICE_NAME training
default OTEL_EXPERIMENTAL_RESOURCE_DETECTORS laggard,otel
default LAGGARD_PROVIDERS replaceable
