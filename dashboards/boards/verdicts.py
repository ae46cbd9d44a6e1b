"""What several dashboards show of alerts."""

from __future__ import annotations

from dashboards.panels import GREY, ORANGE, RED, Panel, Query, listing, series, threshold, timeline, top

#: Rank of a severity, so that the worst stands first: its value in a query and what it is called.
_SEVERITIES = {"3": ("critical", RED), "2": ("warning", ORANGE), "1": ("info", GREY)}
_LABELS = "alertname, training_run, training_rank, host_name, uuid, training_phase"


def _weighted(selector: str, labels: str) -> str:
    parts = (
        f'{value} * max by ({labels}) (ALERTS{{alertstate="firing", severity="{name}"{selector}}})'
        for value, (name, _) in _SEVERITIES.items()
    )
    return " or ".join(parts)


def verdict_timeline(selector: str, title: str = "Verdicts over time") -> Panel:
    """Return a row for each verdict that fires, with its culprit; ``selector`` begins with a comma."""
    labels = "alertname, training_rank, host_name"
    return timeline(
        title,
        "Each row is an alert with the rank or host that it names; a bar is the time for which it fires. The one that "
        "began first is most often the cause. Empty means that nothing is wrong, or that no rules run: see laggard / "
        "Telemetry.",
        Query(f"topk(50, {_weighted(selector, labels)})", "{{alertname}} {{training_rank}} {{host_name}}"),
        _SEVERITIES,
    )


def verdict_list(selector: str) -> Panel:
    """Return what fires now, the worst first; a click on the run opens it."""
    return listing(
        "Verdicts that fire now",
        "The severity is 3 for critical, 2 for warning and 1 for information. The run's name leads to its dashboard.",
        Query(f"topk(50, {_weighted(selector, _LABELS)})", "Severity"),
        {
            "alertname": "Verdict",
            "training_run": "Run",
            "training_rank": "Rank",
            "host_name": "Host",
            "uuid": "GPU",
            "training_phase": "Phase",
        },
        link=("training_run", "/d/laggard-run?var-training_run=${__value.text}&${__url_time_range}"),
    ).span(24)


def straggler_score() -> Panel:
    """Return the score of the ranks that are suspected at all, with the threshold of the alert."""
    return series(
        "Straggler score",
        "Own time as a multiple of the peers', of ranks that are suspected at all. TrainingStraggler fires when it "
        "stays above the line and the rank waits less than its peers.",
        "none",
        Query(
            top('run_rank:training_straggler_score:ratio{{training_run="$training_run"}}{at}'),
            "rank {{training_rank}}",
        ),
        threshold("straggler_score"),
        most=1.5,
    )
