"""What several dashboards show of alerts."""

from __future__ import annotations

from dashboards.panels import (
    COARSE,
    GREY,
    MOST_SERIES,
    ORANGE,
    RED,
    Panel,
    Query,
    listing,
    series,
    threshold,
    timeline,
    top,
)

#: Rank of a severity, so that the worst stands first: its value in a query and what it is called.
_SEVERITIES = {"3": ("critical", RED), "2": ("warning", ORANGE), "1": ("info", GREY)}
#: What a verdict may name, and how each is told in a line.
_NAMED = {
    "training_rank": "rank ",
    "host_name": "",
    "training_peer_group": "group ",
    "training_phase": "in ",
    "training_memory_kind": "",
}
#: The columns of a list of them.
_COLUMNS = {
    "alertname": "Verdict",
    "training_run": "Run",
    "training_rank": "Rank",
    "host_name": "Host",
    "training_peer_group": "Stage or group",
    "training_phase": "Phase",
    "uuid": "GPU",
    "cluster": "Cluster",
}


def _weighted(selector: str, labels: str) -> str:
    parts = (
        f'{value} * max by ({labels}) (ALERTS{{alertstate="firing", severity="{name}"{selector}}})'
        for value, (name, _) in _SEVERITIES.items()
    )
    return " or ".join(parts)


def verdict_timeline(selector: str, title: str = "Verdicts over time") -> Panel:
    """Return a row for each verdict that fires, with its culprit; ``selector`` begins with a comma."""
    found = f"topk({MOST_SERIES}, {_weighted(selector, ', '.join(('alertname', *_NAMED)))})"
    for label, said in _NAMED.items():
        if said:
            found = f'label_replace({found}, "{label}", "{said}$1", "{label}", "(.+)")'
    return timeline(
        title,
        "Each row is an alert with the rank, host, stage or phase that it names; a bar is the time for which it fires. "
        "It begins minutes after its cause, since rules want to see a fault persist. The one that began first is most "
        "often the cause. Empty means that nothing is wrong, or that no rules run: see laggard / Telemetry.",
        Query(found, " ".join(f"{{{{{label}}}}}" for label in ("alertname", *_NAMED))),
        _SEVERITIES,
    )


def verdict_list(selector: str, title: str = "Verdicts that fire now") -> Panel:
    """Return what fires now, the worst first; a click on the run opens it."""
    return listing(
        title,
        "The worst first. The run's name leads to its dashboard.",
        Query(
            # A field that no row has cannot stand in a link, and the cluster may be one.
            f"label_replace(topk({MOST_SERIES}, {_weighted(selector, ', '.join(_COLUMNS))}), "
            '"opens", "&var-cluster=$1", "cluster", "(.*)")',
            "Severity",
        ),
        _COLUMNS,
        # Grafana leaves & and # of a value as they are unless it is told otherwise.
        link=(
            "training_run",
            "/d/laggard-run?var-training_run=${__value.raw:percentencode}${__data.fields.opens}&${__url_time_range}",
        ),
        hidden="opens",
        values=_SEVERITIES,
    ).span(24)


def straggler_score() -> Panel:
    """Return the score of the slowest rank and of those that are suspected, with the alert's threshold."""
    return series(
        "Straggler score",
        "Own time as a multiple of the peers': of whichever rank is slowest at each time, and of each that is "
        "suspected at all. TrainingStraggler fires when a rank stays above the line and waits less than its peers.",
        "none",
        Query(
            'max(run_rank:training_step_own_seconds:compared{cluster="$cluster", training_run="$training_run"} '
            "/ on (cluster, training_run, training_peer_group) group_left () "
            'run_peer_group:training_step_own_seconds:reference{cluster="$cluster", training_run="$training_run"})',
            "slowest rank",
        ),
        Query(
            top('run_rank:training_straggler_score:ratio{{cluster="$cluster", training_run="$training_run"}}{at}'),
            "rank {{training_rank}}",
        ),
        threshold("straggler_score"),
        most=1.5,
        colours={"slowest rank": GREY},
    ).max_data_points(COARSE)
