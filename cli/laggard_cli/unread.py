"""What arrives of ranks in a form that the rules do not read: other names, native histograms."""

from __future__ import annotations

from typing import NamedTuple

from laggard_cli.clusters import CLUSTER, RUN, Run
from laggard_cli.prometheus import Prometheus

#: Steps under a name that no rule reads: as OTLP has it, with other suffixes, or with what a site puts before it.
_RENAMED = (
    f"group by (__name__, {CLUSTER}, {RUN}) "
    '({__name__=~".*training[._]+steps([._]+total)?", __name__!="training_steps_total"})'
)
#: A native histogram without the classic one beside it, whose series have names of their own.
_NATIVE = (
    f"group by ({CLUSTER}, {RUN}) (training_step_own_duration_seconds)"
    f" unless on ({CLUSTER}, {RUN}) training_step_own_duration_seconds_count"
)


class Unread(NamedTuple):
    """Why rules read nothing of a run, and what to do."""

    why: str
    do: str


def unread(server: Prometheus, at: float | None = None) -> dict[Run, Unread]:
    """Return what keeps the rules from reading a run; its name is empty where the label has another name too."""
    found = {
        _run(sample.labels): Unread(
            "histograms arrive as native ones, and the rules read classic ones",
            "set always_scrape_classic_histograms: true in the scrape job; where ranks push, take out "
            "convert_histograms_to_nhcb and OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        )
        for sample in server.query(_NATIVE, at)
    }
    for sample in server.query(_RENAMED, at):
        name = sample.labels.get("__name__", "")
        found[_run(sample.labels)] = Unread(
            f"steps arrive as {name}, and the rules read training_steps_total",
            "take out what renames metrics: metric_relabel_configs, metric_name_escaping_scheme; where ranks push, try "
            "otlp: {translation_strategy: UnderscoreEscapingWithSuffixes}",
        )
    return found


def _run(labels: dict[str, str]) -> Run:
    return Run(labels.get(CLUSTER, ""), labels.get(RUN, ""))
