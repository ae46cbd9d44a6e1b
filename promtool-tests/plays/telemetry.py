"""TrainingTelemetryDown: which of the two sources about a rank went silent."""

from __future__ import annotations

from hang import frozen
from laggard.shared.phases import RankState
from scenario import MINE, RUNBOOKS, Firing, Play, Scenario, ranks
from world import RUN

FAMILIES = ("process", "telemetry")
EVERY = 30


def _telemetry(rank: int, source: str, host: str = "host-a") -> Firing:
    return Firing("TrainingTelemetryDown", rank, host=host, source=source)


def rank_without_metrics() -> Scenario:
    """Metrics of a rank that runs stop to arrive: told within six minutes, not for a gap of 90 seconds."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario[1].lost = True
    scenario.after(seconds=90)
    scenario[1].lost = False
    scenario.after(minutes=4)
    scenario.never()
    scenario[1].lost = True
    scenario.after(minutes=2.75)
    scenario.never()
    scenario.after(minutes=3.25)
    scenario.fires(_telemetry(1, "rank"))
    scenario.says(
        _telemetry(1, "rank"),
        title="The metrics of a rank that trains do not arrive.",
        summary="Rank 1 of run run-a on host-a trains, but its metrics do not arrive.",
        description="By its state file, the process of rank 1 of run run-a on host host-a runs, but none of its "
        "metrics arrives. It cannot be compared with its peers.",
        recommendation="Run `laggard doctor`: it names what is not scraped, and what drops or changes metrics on the "
        "way. Else check whether a thread of the process holds the interpreter for long.",
        runbook_url=f"{RUNBOOKS}/TrainingTelemetryDown.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[1].lost = False
    scenario.after(seconds=15)
    scenario.silent()
    return scenario


def exporter_gone() -> Scenario:
    """The state files that an exporter showed are gone while the ranks' metrics go on; ends with the run."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    for number in (2, 3):
        scenario[number].exporter_lost = True
    scenario.after(minutes=2.75)
    scenario.never()
    scenario.after(minutes=3.25)
    scenario.fires(_telemetry(2, "exporter", "host-b"), _telemetry(3, "exporter", "host-b"))
    scenario.says(
        _telemetry(2, "exporter", "host-b"),
        _telemetry(3, "exporter", "host-b"),
        title="A node exporter no longer shows a rank that trains.",
        summary="A node exporter no longer shows rank {rank} of run run-a on host-b, which trains.",
        description="Rank {rank} of run run-a on host host-b trains, but the node exporter that showed its state "
        "file no longer does. A stall or a death of this rank could not be detected.",
        recommendation="Check that laggard-exporter runs on the host, is scraped, and reads the folder that "
        "LAGGARD_STATE_DIR names.",
        runbook_url=f"{RUNBOOKS}/TrainingTelemetryDown.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    for rank in scenario.world.ranks:
        rank.finish()
    scenario.after(minutes=3)
    scenario.silent()
    scenario.after(minutes=10)
    scenario.silent()
    return scenario


def counted_once() -> Scenario:
    """After a lost scrape a rank is shown by its exporter a minute ago, and by its own word now: one rank."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=4)
    for lost in (True, False):
        for rank in scenario.world.ranks:
            rank.exporter_lost = lost
        for _ in range(10):
            scenario.after(seconds=15)
            live = f"run:training_ranks_live:count{{{MINE}}}"
            scenario.value(live, {f'run:training_ranks_live:count{{training_run="{RUN}"}}': 4})
    scenario.never()
    return scenario


def silent_by_design() -> Scenario:
    """No telemetry is missed of a rank that starts, is stopped or has finished, nor an exporter that never was."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.state, rank.lost = RankState.STARTING, True
    scenario[3].has_exporter = False
    scenario.world.training.clear()
    scenario.after(minutes=8)
    scenario.never()
    for rank in scenario.world.ranks:
        rank.state, rank.lost, rank.last_edge = RankState.RUNNING, False, scenario.world.now
    scenario.world.training.add(RUN)
    scenario.after(minutes=2)
    scenario.never()
    scenario[1].stopped = scenario[1].lost = True
    scenario.world.training.clear()
    scenario.after(minutes=5)
    scenario.fires(Firing("TrainingStalled", 1, "forward", "host-a", "exporter"), frozen(1, "stopped", "forward"))
    scenario[1].stopped = scenario[1].lost = False
    for rank in scenario.world.ranks:
        rank.finish()
    scenario.after(minutes=1)
    scenario.silent()
    scenario.after(minutes=10)
    scenario.silent()
    return scenario


def scraped_each_minute() -> Scenario:
    """Told of ranks and of exporters, each for itself; not of a run that has begun, nor of two scrapes a minute.

    Told also where scrapes are so rare that a minute may hold none, and the run seems to be gone in between.
    """
    scenario = Scenario([*ranks(2), *ranks(2, run="run-b"), *ranks(2, run="run-c"), *ranks(2, run="run-d")])
    for rank in scenario.world.ranks:
        rank.every = {RUN: 60, "run-b": 0, "run-c": 30, "run-d": 120}[rank.run]
        rank.exporter_every = {RUN: 0, "run-b": 60, "run-c": 30, "run-d": 0}[rank.run]
        rank.has_exporter = rank.run != "run-d"
    scenario.after(minutes=5)
    scenario.never()
    scenario.after(minutes=7)
    scenario.fires(
        Firing("TrainingScrapesSparse", source="rank"),
        Firing("TrainingScrapesSparse", source="exporter", run="run-b"),
        Firing("TrainingScrapesSparse", source="rank", run="run-d"),
    )
    for rank in scenario.world.ranks:
        rank.every = rank.exporter_every = 0
    scenario.after(minutes=5)
    scenario.silent()
    return scenario


PLAYS: tuple[Play, ...] = (
    scraped_each_minute,
    rank_without_metrics,
    exporter_gone,
    counted_once,
    silent_by_design,
)
