"""What arrives of ranks in a form that the rules do not read, and what of it does not arrive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from laggard_cli.clusters import CLUSTER, RUN, Run
from laggard_cli.doctor.findings import count, some
from laggard_cli.prometheus import Prometheus

_RANK = "training_rank"
_PEERS = "training_peer_group"
_OWN = "training_step_own_duration_seconds_count"
_WHO = f"{CLUSTER}, {RUN}, {_RANK}"

#: Steps under a name that no rule reads: as OTLP has it, with other suffixes, with what a site puts before it, or as
#: vmagent's stream aggregation or Telegraf calls it. What rules record has a colon before.
RENAMED = (
    f"group by (__name__, {CLUSTER}, {RUN}) "
    '({__name__=~"[^:]*training[._]+steps([._]+total)?(:.+|_counter)?", __name__!="training_steps_total"})'
)
#: A native histogram without the classic one beside it, whose series have names of their own.
_NATIVE = f"group by ({CLUSTER}, {RUN}) (training_step_own_duration_seconds) unless on ({CLUSTER}, {RUN}) {_OWN}"
#: Without which labels nobody can tell apart what arrives of every rank.
_LABELS = {
    _OWN: (RUN, _RANK),
    "training_phase_duration_seconds_sum": ("training_phase",),
    "training_signal_available": ("training_signal",),
    "training_rank_state": ("training_state",),
    "training_process_state": ("training_state",),
}
_GONE, _METRIC = "gone", "metric"
#: Of a run without peer groups no series has that label: the state files of its ranks say whether there are some.
_UNGROUPED = (
    f'training_process_info{{{_PEERS}!=""}} and on ({CLUSTER}, {RUN}) {_OWN}'
    f' unless on ({CLUSTER}, {RUN}) {_OWN}{{{_PEERS}!=""}}'
)
_UNNAMED = " or ".join(
    f'group by ({CLUSTER}, {RUN}, {_GONE}) (label_replace({series}, "{_GONE}", "{label}", "", ""))'
    for series, label in (
        *((f'{series}{{{label}=""}}', label) for series, labels in _LABELS.items() for label in labels),
        (_UNGROUPED, _PEERS),
    )
)
#: Runs of whose ranks a gauge says when a step ended, and no counter that one did.
_UNCOUNTED = (
    f"group by ({CLUSTER}, {RUN}) (training_last_step_timestamp_seconds)"
    f" unless on ({CLUSTER}, {RUN}) training_steps_total"
)
#: Runs whose counters fall from sample to sample, as deltas do that a server keeps as they are. Those of a run that
#: restarts again and again fall less often.
_FALLING = (
    f"group by ({CLUSTER}, {RUN}) (resets(training_step_own_duration_seconds_sum[5m])"
    " / (count_over_time(training_step_own_duration_seconds_sum[5m]) >= 10) > 0.3)"
)

#: Of each rank; {0} is for a time before. Compact series have no count of excluded steps, and no warm-up takes as many.
_STEPS = f"max by ({_WHO}) (training_steps_total{{0}})"
_EXCLUDED = f"sum by ({_WHO}) (max by ({_WHO}, training_reason) (training_steps_excluded_total{{0}}))"
_BY_RUN = f"group by ({CLUSTER}, {RUN})"
#: Metrics that rules read and that are there wherever a query has an answer, now and some time before: of ranks that
#: ended steps that count, of ranks at work by their own word, of ranks at work by their state file.
_READ = {
    f"{_BY_RUN} ({_STEPS} > 100 unless on ({_WHO}) {_EXCLUDED} >= on ({_WHO}) {_STEPS})": (
        *(
            f"training_{step}_duration_seconds_{part}"
            for step in ("step", "step_own", "phase")
            for part in ("sum", "count")
        ),
        "training_last_step_timestamp_seconds",
        "training_rank_state",
    ),
    f'{_BY_RUN} (training_rank_state{{{{training_state="running"}}}}{{0}} == 1)': (
        "training_steps_total",
        "training_ranks_expected",
        "training_signal_available",
        "training_rank_start_timestamp_seconds",
    ),
    f"{_BY_RUN} (training_process_up{{0}} == 1)"
    f' or {_BY_RUN} (training_process_state{{{{training_state="running"}}}}{{0}} == 1)': (
        "training_process_up",
        "training_process_state",
        "training_process_info",
        "training_process_world_size",
        "training_process_steps_total",
        "training_process_progress_total",
        "training_process_start_timestamp_seconds",
    ),
}


class Unread(NamedTuple):
    """Why rules read nothing of a run, and what to do."""

    why: str
    do: str


def unread(server: Prometheus, at: float | None = None) -> dict[Run, Unread]:
    """Return what keeps the rules from reading a run; its name is empty where the label has another name too."""
    found = {
        _run(sample.labels): Unread(
            why,
            "take out what makes deltas of them: OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE of the ranks, "
            "cumulative_to_delta of a Collector; or add delta_to_cumulative to the Collector",
        )
        for query, why in (
            (_UNCOUNTED, "gauges of its ranks arrive, and no counters"),
            (_FALLING, "counters of its ranks arrive as deltas, and the rules read sums"),
        )
        for sample in server.query(query, at)
    }
    for sample in server.query(_NATIVE, at):
        found[_run(sample.labels)] = Unread(
            "histograms arrive as native ones, and the rules read classic ones",
            "set always_scrape_classic_histograms: true in the scrape job; where ranks push, take out "
            "convert_histograms_to_nhcb and OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        )
    gone: dict[Run, set[str]] = {}
    for sample in server.query(_UNNAMED, at, by=(_GONE,)):
        gone.setdefault(_run(sample.labels), set()).add(sample.labels[_GONE])
    for run, labels in gone.items():
        found[run] = Unread(
            f"series arrive without the label{'s' * (len(labels) > 1)} {some(sorted(labels))}",
            "take out what drops or moves labels: labeldrop in metric_relabel_configs; attributes, redaction, "
            "group_by_attrs, or an aggregation in a Collector",
        )
    return found


def renamed(server: Prometheus, at: float | None = None) -> dict[Run, Unread]:
    """Return the runs whose steps have a name that no rule reads. A server may refuse a pattern for a name."""
    found: dict[Run, Unread] = {}
    for sample in server.query(RENAMED, at):
        name = sample.labels.get("__name__", "")
        found[_run(sample.labels)] = Unread(
            f"steps arrive as {name}, and the rules read training_steps_total",
            "take out what renames metrics: metric_relabel_configs, metric_name_escaping_scheme; namespace or "
            "metrics_transform in a Collector; in vmagent's stream aggregation set keep_metric_names, in Telegraf's "
            "inputs.prometheus metric_version = 2; where ranks push, try translation_strategy: "
            "UnderscoreEscapingWithSuffixes, of otlp in Prometheus or of a Collector's exporter, or "
            "-opentelemetry.usePrometheusNaming of VictoriaMetrics",
        )
    return found


def lost(server: Prometheus, before: str, at: float | None = None) -> dict[Run, set[str]]:
    """Return of each run the metrics that rules read and that are not there, though what comes with them is.

    Args:
        server: that is asked.
        before: how long, in PromQL, it must have been there.
        at: a time in seconds since 1970; now by default.
    """
    wanted: dict[Run, set[str]] = {}
    for query, names in _READ.items():
        settled = f"({query.format('')}) and on ({CLUSTER}, {RUN}) ({query.format(f' offset {before}')})"
        for sample in server.query(settled, at, by=(RUN,)):
            wanted.setdefault(_run(sample.labels), set()).update(names)
    every = {name for names in wanted.values() for name in names}
    there = [f'label_replace(group by ({CLUSTER}, {RUN}) ({name}), "{_METRIC}", "{name}", "", "")' for name in every]
    for sample in server.query(" or ".join(sorted(there)), at) if there else ():
        wanted.get(_run(sample.labels), set[str]()).discard(sample.labels.get(_METRIC, ""))
    return {run: names for run, names in wanted.items() if names}


def said_of_lost(names: Iterable[str]) -> Unread:
    """Return what is said of metrics that are not there."""
    gone = sorted(names)
    return Unread(
        f"{count(len(gone), 'metric')} that the rules read {'is' if len(gone) == 1 else 'are'} lost on the way: "
        f"{some(gone)}",
        "let training_*, gpu_*, host_* and laggard_* through, under their names: metric_relabel_configs, "
        "write_relabel_configs, filters of a Collector",
    )


def _run(labels: dict[str, str]) -> Run:
    return Run(labels.get(CLUSTER, ""), labels.get(RUN, ""))
