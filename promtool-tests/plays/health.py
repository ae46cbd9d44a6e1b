"""Whether telemetry can be trusted: the watchdog, lost events, clocks, clashes of names, too many series."""

from __future__ import annotations

from scenario import RUNBOOKS, Firing, Play, Scenario, ranks
from world import RUN, Rank

FAMILIES = ("process", "telemetry")
EVERY = 60

_DROPPED = "training_telemetry_dropped_total{reason=buffer_full}"

DASHBOARD = "/d/laggard-run?var-training_run=run-a"


def watchdog() -> Scenario:
    """Fires from the second evaluation on, without any run, and says which pack it is."""
    scenario = Scenario(ranks(1))
    scenario.after(minutes=1)
    scenario.value(
        'count without (alertgroup) (ALERTS{alertname="LaggardWatchdog"})',
        {
            '{alertname="LaggardWatchdog", alertstate="firing", severity="info", training_kind="telemetry", '
            'version="0.1.0"}': 1,
        },
    )
    scenario.never()
    return scenario


def dropped() -> Scenario:
    """Tells of a rank that loses events, with the reason, until it no longer does."""
    scenario = Scenario(ranks(2))
    for rank in scenario.world.ranks:
        rank.counters[_DROPPED] = 0.25
    scenario.after(minutes=12)
    scenario.never()
    scenario[1].counters[_DROPPED] = 5
    scenario.after(minutes=12.25)
    alert = Firing("TrainingTelemetryDropped", 1, more=(("training_reason", "buffer_full"),))
    scenario.fires(alert)
    scenario.says(
        alert,
        title="A rank drops much of what it measures.",
        summary="Rank 1 of run run-a drops much of what it measures, because its buffer was full.",
        description="Rank 1 of run run-a dropped 3k measured events in the last ten minutes, because its buffer "
        "was full. Its phases may not add up.",
        recommendation="If the reporting thread does not keep up, give the process a spare core, or look for code that "
        "holds the interpreter for long; with very short steps, record fewer phases.",
        runbook_url=f"{RUNBOOKS}/TrainingTelemetryDropped.md",
        dashboard_url=DASHBOARD,
    )
    scenario[1].lost = True
    scenario.after(minutes=1)
    scenario.fires(alert)
    scenario[1].lost = False
    scenario[1].counters[_DROPPED] = 0
    scenario.after(minutes=12)
    scenario.silent()
    return scenario


def clock() -> Scenario:
    """Tells of a host whose clock is off, ahead or behind, for five minutes; not of half a minute."""
    scenario = Scenario(ranks(6, per_host=2))
    for rank in scenario.world.ranks:
        rank.clock = {"host-a": -30, "host-b": -200, "host-c": 200}[rank.host]
    scenario.after(minutes=5)
    scenario.never()
    scenario.after(minutes=2.5)
    behind, ahead = Firing("TrainingClockSkew", host="host-b"), Firing("TrainingClockSkew", host="host-c")
    scenario.fires(behind, ahead)
    scenario[2].lost = scenario[2].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(behind, ahead)
    scenario[2].lost = scenario[2].exporter_lost = False
    for rank in scenario.world.ranks[4:]:
        rank.clock = 0
    scenario.after(minutes=1.5)
    scenario.fires(behind)
    scenario.says(
        behind,
        title="The clock of a host differs from that of the monitoring server.",
        summary="The clock of host host-b (run run-a) differs from the server's by 3m 19s.",
        description="The clock of host host-b, on which ranks of run run-a train, differs from the server's by 3m "
        "19s. Ages that are computed from the ranks' timestamps are wrong by as much.",
        recommendation="Check that chronyd or ntpd runs on the host and is synchronised, and on the server too if "
        "several hosts are named.",
        runbook_url=f"{RUNBOOKS}/TrainingClockSkew.md",
        dashboard_url=DASHBOARD,
    )
    return scenario


def clash() -> Scenario:
    """Tells of two jobs with one name until one of them ends; not of a dead process that left its file behind."""
    dead = Rank(1, "host-b", alive=False)
    other = Rank(0, "host-b", alive=False, has_exporter=False)
    scenario = Scenario([*ranks(2), dead, other])
    scenario.after(minutes=3)
    scenario.never()
    other.alive = other.has_exporter = True
    other.start = 180
    scenario.after(minutes=3.25)
    alert = Firing("TrainingRankClash", 0)
    scenario.fires(alert)
    scenario.says(
        alert,
        title="Two processes report as the same rank of the same run.",
        summary="Two processes report as rank 0 of run run-a.",
        description="Two living processes report as rank 0 of run run-a; one started 3m 0s after the other. Their "
        "metrics are mixed, so no verdict on the run holds.",
        recommendation="Give each job a name of its own in LAGGARD_RUN, or none, and laggard finds one. If there is "
        "one job alone, end the process that an earlier attempt left behind.",
        runbook_url=f"{RUNBOOKS}/TrainingRankClash.md",
        dashboard_url=DASHBOARD,
    )
    other.exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(alert)
    other.alive, other.has_exporter = False, False
    scenario.after(minutes=2.25)
    scenario.silent()
    # Tasks of an array are started together.
    other.alive, other.has_exporter, other.exporter_lost = True, True, False
    other.start = scenario[0].start + 0.001
    scenario.after(minutes=3.25)
    scenario.fires(alert)
    return scenario


def too_many_series() -> Scenario:
    """Tells of a rank with more than twice the series that laggard keeps by itself."""
    scenario = Scenario([*ranks(1), *ranks(1, run="run-b")])
    for run, count in ((RUN, 400), ("run-b", 300)):
        for number in range(count):
            scenario.given("training_tokens_total", 1, training_run=run, training_rank="0", pod=f"pod-{number}")
    scenario.after(minutes=5)
    scenario.never()
    scenario.after(minutes=2)
    scenario.fires(Firing("TrainingSeriesExcess", 0))
    scenario.value('count({__name__=~"training_.+", training_run="run-a"}) > bool 400', {"{}": 1})
    scenario.world.ranks[0].lost = True
    scenario.after(seconds=30)
    scenario.fires(Firing("TrainingSeriesExcess", 0))
    return scenario


PLAYS: tuple[Play, ...] = (watchdog, dropped, clock, clash, too_many_series)
