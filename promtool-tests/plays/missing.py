"""TrainingRankMissing: who is gone, and who has only ended."""

from __future__ import annotations

from hang import died, stalled, stick
from laggard.shared.phases import Phase, RankState
from scenario import MINE, RUN, RUNBOOKS, Firing, Play, Scenario, ranks
from world import Rank

FAMILIES = ("process",)


def _missing(rank: int | None = None, host: str = "") -> Firing:
    return Firing("TrainingRankMissing", rank, host=host)


def killed() -> Scenario:
    """Names a killed rank within a minute while the others work on, and ends when it is back."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    scenario[3].kill()
    scenario.after(seconds=15)
    scenario.silent()
    scenario.after(seconds=45)
    scenario.fires(_missing(3, "host-b"), died(3, host="host-b"))
    scenario.says(
        _missing(3, "host-b"),
        title="A rank of a training run is gone while others work on.",
        summary="Rank 3 of run run-a on host-b is gone while others work on.",
        description="Rank 3 of run run-a, last seen on host host-b, is gone without a clean end. Missing: 1 of 4.",
        recommendation="Look for the end of its process in its log and in the kernel's (dmesg: out of memory, XID), "
        "then restart the run from its last checkpoint.",
        runbook_url=f"{RUNBOOKS}/TrainingRankMissing.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario.after(minutes=5)
    scenario[3].alive, scenario[3].state = True, RankState.STARTING
    scenario[3].start = scenario[3].last_edge = scenario.world.now
    scenario.after(seconds=30)
    scenario.silent()
    return scenario


def killed_in_its_first_minute() -> Scenario:
    """A rank that dies before the roster of its run is written is named, and nothing is said of the run as a whole."""
    scenario = Scenario(ranks(4))
    for name in ("stall_seconds", "stall_starting_seconds", "stall_pause_seconds"):
        scenario.threshold(name, 20)
    for rank in scenario.world.ranks:
        rank.has_metrics = rank.has_exporter = False
    scenario.after(seconds=75)
    for rank in scenario.world.ranks:
        rank.has_metrics = rank.has_exporter = True
        rank.start = 60
    scenario.after(seconds=15)
    stick(scenario, culprit=2)
    scenario[2].kill()
    scenario.after(minutes=3)
    whole = '{alertstate="firing", alertname=~"Training(Stalled|RankMissing)", training_rank=""}'
    scenario.value(f"last_over_time(ALERTS{whole}[10m])", {})
    scenario.fires(died(2), _missing(2, "host-a"), stalled(2, "forward", "host-a"))
    return scenario


def restarted_at_once() -> Scenario:
    """A rank that is back within 30 seconds is not missing; whether it died is said where the groups come in time."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario[1].alive = False
    scenario.after(seconds=30)
    scenario[1].alive = True
    scenario.after(seconds=15)
    for _ in range(6):
        scenario.silent()
        scenario.after(seconds=15)
    return scenario


def host_down() -> Scenario:
    """Names all ranks of a host that vanished with its exporter."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    for number in (2, 3):
        scenario[number].alive = scenario[number].has_exporter = False
    scenario.world.training.clear()
    for number in (0, 1):
        scenario[number].enters(Phase.COMMUNICATION, world=(1_000, True))
    scenario.after(minutes=2.25)
    stalled = Firing("TrainingStalled", source="exporter")
    scenario.fires(_missing(2, "host-b"), _missing(3, "host-b"), stalled)
    scenario.after(minutes=10)
    scenario.fires(_missing(2, "host-b"), _missing(3, "host-b"), stalled)
    return scenario


def never_seen() -> Scenario:
    """A rank that nobody ever saw is missing without a name, once the others run; not while they start."""
    scenario = Scenario(ranks(3))
    for rank in scenario.world.ranks:
        rank.world_size, rank.state = 4, RankState.STARTING
    scenario.after(minutes=5)
    scenario.never()
    for rank in scenario.world.ranks:
        rank.state = RankState.RUNNING
    scenario.after(minutes=1)
    scenario.fires(_missing())
    scenario.says(
        _missing(),
        title="A rank of a training run is gone while others work on.",
        summary="Run run-a works on without 1 of its 4 ranks.",
        description="Some ranks of run run-a have never been seen. Missing: 1 of 4.",
        recommendation="Check with the scheduler whether all hosts of the run started, and whether each rank exports "
        "metrics or has a node exporter that reads its state file.",
        runbook_url=f"{RUNBOOKS}/TrainingRankMissing.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def never_seen_without_exporter() -> Scenario:
    """So it is where no exporter shows the ranks."""
    scenario = Scenario(ranks(3))
    for rank in scenario.world.ranks:
        rank.world_size, rank.has_exporter = 4, False
    scenario.after(minutes=1.5)
    scenario.fires(_missing())
    return scenario


def restart_on_other_hosts() -> Scenario:
    """While a run starts anew on other hosts, the files that its dead processes left say nothing about who is there."""
    again = [Rank(number, "host-b", state=RankState.STARTING, alive=False, has_exporter=False) for number in range(4)]
    scenario = Scenario([*ranks(4), *again])
    scenario.after(minutes=8)
    for rank in scenario.world.ranks[:4]:
        rank.alive = False
    for rank in again[:3]:
        rank.alive = rank.has_exporter = True
        rank.start = rank.last_edge = scenario.world.now
    scenario.after(minutes=5)
    scenario.never()
    return scenario


def never_came() -> Scenario:
    """A rank that does not come at all is missing once the others have waited for longer than a start takes."""
    scenario = Scenario(ranks(3))
    scenario.world.training.clear()
    for rank in scenario.world.ranks:
        rank.world_size, rank.state, rank.phase = 4, RankState.STARTING, Phase.OTHER
    scenario.after(minutes=10)
    scenario.never()
    scenario.after(minutes=1.5)
    scenario.fires(_missing(), Firing("TrainingStalled", source="exporter"))
    return scenario


def ends_one_by_one() -> Scenario:
    """A clean end is no loss, however long the last rank works on; nothing fires at or after the end of a run."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for number in (1, 2, 3):
        scenario.world.training.clear()
        scenario[number].finish()
        scenario[0].enters(Phase.CHECKPOINT)
        scenario.after(minutes=2)
    scenario.after(minutes=10)
    scenario[0].finish()
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=10)
    scenario.never()
    return scenario


def ends_without_exporter() -> Scenario:
    """Without an exporter a clean end leaves no trace, so a rank may be gone for five minutes before it is missed."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=3)
    scenario.world.training.clear()
    for number in (3, 2, 1):
        scenario[number].finish()
        scenario.after(minutes=1)
    scenario.after(minutes=1)
    scenario[0].finish()
    scenario.after(minutes=10)
    scenario.never()
    return scenario


def killed_without_exporter() -> Scenario:
    """Without an exporter a rank is missed after five minutes, and named from the hour before."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=3)
    scenario[2].alive = False
    scenario.after(minutes=4.5)
    scenario.never()
    scenario.after(minutes=1.75)
    scenario.fires(_missing(2, "host-a"))
    return scenario


def failed() -> Scenario:
    """A rank that ended by an exception is missing like a killed one."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario[0].state = RankState.FAILED
    scenario[0].kill()
    scenario.after(minutes=1)
    scenario.fires(_missing(0, "host-a"), died(0))
    return scenario


def fewer_ranks() -> Scenario:
    """After an elastic restart with fewer ranks, none of the former is missing, even on another host's exporter."""
    everyone = ranks(4)
    scenario = Scenario([*everyone, Rank(0, "host-b", world_size=2, alive=False, has_exporter=False)])
    new = scenario.world.ranks[-1]
    scenario.after(minutes=8)
    for number in (0, 2, 3):
        scenario[number].alive = False
    new.alive = new.has_exporter = True
    everyone[1].world_size = 2
    new.start = everyone[1].start = scenario.world.now
    new.last_edge = scenario.world.now
    scenario.after(minutes=5)
    scenario.never()
    everyone[1].kill()
    scenario.after(minutes=1)
    scenario.fires(_missing(1, "host-a"), died(1))
    return scenario


def fewer_ranks_soon() -> Scenario:
    """A restart with fewer ranks, minutes after the start and within seconds: who was left out is not called dead."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for number in (2, 3):
        scenario[number].alive = False
    for number in (0, 1):
        scenario[number].world_size = 2
        scenario[number].start = scenario[number].last_edge = scenario.world.now + 5
    scenario.after(minutes=3)
    scenario.never()
    return scenario


def all_killed() -> Scenario:
    """A job that was killed as a whole has no rank that could miss another."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.alive = False
    scenario.after(minutes=10)
    scenario.never()
    return scenario


def lost_scrapes() -> Scenario:
    """Neither a lost scrape of the exporter nor one of a rank, nor both, raises anything."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for lost, exporter_lost in ((True, False), (False, True), (True, True)):
        scenario[1].lost, scenario[1].exporter_lost = lost, exporter_lost
        scenario.after(seconds=30)
        scenario[1].lost = scenario[1].exporter_lost = False
        scenario.after(minutes=1)
    scenario.never()
    return scenario


def exporters_that_come_and_go() -> Scenario:
    """No rank is missing because exporters go and come, for a minute or for ten: the ranks' own metrics show them."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=5)
    for seconds in (30, 60, 75, 90):
        for rank in (scenario[2], scenario[3]):
            rank.exporter_lost = True
        scenario.after(seconds=seconds)
        for rank in (scenario[2], scenario[3]):
            rank.exporter_lost = False
        scenario.after(seconds=90)
        scenario.never()
    for rank in (scenario[2], scenario[3]):
        rank.exporter_lost = True
    scenario.after(minutes=10)
    scenario.value(f'count(last_over_time(ALERTS{{alertname=~"TrainingRank.+|TrainingStalled", {MINE}}}[1h]))', {})
    scenario.value(
        f"run:training_ranks_live:count{{{MINE}}}",
        {f'{{__name__="run:training_ranks_live:count", training_run="{RUN}"}}': 4},
    )
    return scenario


PLAYS: tuple[Play, ...] = (
    exporters_that_come_and_go,
    killed,
    killed_in_its_first_minute,
    restarted_at_once,
    host_down,
    never_seen,
    never_seen_without_exporter,
    restart_on_other_hosts,
    never_came,
    ends_one_by_one,
    ends_without_exporter,
    killed_without_exporter,
    failed,
    fewer_ranks,
    fewer_ranks_soon,
    all_killed,
    lost_scrapes,
)
