"""TrainingRankDied, TrainingRankFrozen and TrainingRestartLoop: what the state files say at once."""

from __future__ import annotations

from hang import begin_again, died, failed, frozen, resume, stalled, stick
from laggard.shared.phases import Phase, RankState
from scenario import RUNBOOKS, Firing, Play, Scenario, ranks
from world import RUN

FAMILIES = ("process",)

LOOP = Firing("TrainingRestartLoop")
MISSING = Firing("TrainingRankMissing", 3, host="host-b")


def killed() -> Scenario:
    """Names a killed rank, its host and phase within a minute of its death, and ends when it is back."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    scenario[3].phase = Phase.BACKWARD
    scenario[3].kill()
    scenario.after(seconds=15)
    scenario.never()
    scenario.after(seconds=45)
    scenario.fires(died(3, "backward", "host-b"), MISSING)
    scenario.says(
        died(3, "backward", "host-b"),
        title="The process of a rank died while others work on.",
        summary="The process of rank 3 of run run-a on host-b died while others work on.",
        description="The process of rank 3 of run run-a on host host-b ended without a clean end. Its last sign of"
        " life was 45s ago in phase backward. The others cannot complete a step without it.",
        recommendation="Read the rank's log and the kernel's on its host (dmesg: out of memory, XID) for the cause, "
        "take the host out if it is at fault, then restart the run from its last checkpoint.",
        runbook_url=f"{RUNBOOKS}/TrainingRankDied.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    # Until now a minute looks back to the rank's own last metrics, by a second path and before Prometheus 3.
    scenario.after(seconds=15)
    scenario[3].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(died(3, "backward", "host-b"), MISSING)
    scenario[3].exporter_lost = False
    scenario.after(seconds=15)
    scenario.fires(died(3, "backward", "host-b"), MISSING)
    scenario[3].alive, scenario[3].state = True, RankState.STARTING
    scenario[3].start = scenario[3].last_edge = scenario.world.now
    scenario.after(seconds=30)
    scenario.silent()
    return scenario


def given_up() -> Scenario:
    """Ranks that a watchdog ends once the run has stood still are not named; who hangs stays named."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=4)
    stick(scenario, culprit=2)
    scenario.after(minutes=2)
    hangs = stalled(2, "forward", "host-b")
    scenario.fires(hangs)
    for number in (0, 1, 3):
        scenario[number].alive, scenario[number].ending = False, ("signal", "SIGABRT")
    scenario.after(minutes=2)
    scenario.fires(hangs)
    scenario[2].alive = False
    scenario.after(minutes=1.25)
    ended = failed("signal", "SIGABRT", after="stall")
    scenario.fires(ended)
    scenario.says(
        ended,
        title="A training run failed.",
        summary="Run run-a failed, 3m 1s ago.",
        description="Run run-a ended by SIGABRT, 3m 1s ago. It had made no progress before that, as "
        "TrainingStalled reported. No rank of the run is left.",
        recommendation="Find out why it made no progress: read what TrainingStalled said, and the log of the rank "
        "that the others waited for, if it named one. The ends follow from that.",
        runbook_url=f"{RUNBOOKS}/TrainingRunFailed.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario.after(minutes=65)
    scenario.fires(ended)
    begin_again(scenario)
    scenario.after(seconds=45)
    scenario.silent()
    return scenario


def killed_in_a_pause() -> Scenario:
    """Of a run that once stood still, who is killed while all save a checkpoint is named: a pause is no standstill."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=4)
    stick(scenario, culprit=2)
    scenario.after(minutes=2)
    scenario.fires(stalled(2, "forward", "host-b"))
    resume(scenario)
    scenario.after(minutes=5)
    scenario.world.training.discard(RUN)
    for rank in scenario.world.ranks:
        rank.enters(Phase.CHECKPOINT)
    scenario.after(seconds=45)
    now = scenario.world.now
    for rank in scenario.world.ranks:
        rank.alive, rank.failed_at, rank.ending = False, now - 3, ("exception", "RuntimeError")
    scenario[1].failed_at, scenario[1].ending = now - 5, ("unknown", "")
    scenario.after(minutes=1)
    scenario.fires(failed("unknown", rank=1, phase="checkpoint", host="host-a"))
    return scenario


def no_death() -> Scenario:
    """A clean end is no death, nor is a lost scrape, the end of the job as a whole, or one scrape between two lives."""
    scenario = Scenario([*ranks(4), *ranks(2, run="run-b")])
    scenario.after(minutes=3)
    scenario[1].alive = False
    scenario[2].lost = scenario[2].exporter_lost = True
    scenario.after(seconds=15)
    scenario[1].alive = True
    scenario[2].lost = scenario[2].exporter_lost = False
    scenario.after(minutes=1)
    scenario[3].finish()
    for rank in scenario.world.ranks[4:]:
        rank.alive = False
    scenario.after(minutes=5)
    scenario.never()
    return scenario


def asked_to_end() -> Scenario:
    """Who was asked to end has not died: a job that is made smaller waits for it until its launcher begins again."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    scenario[3].alive = False
    scenario.after(minutes=1)
    scenario.fires(MISSING)
    return scenario


def stopped() -> Scenario:
    """Names a stopped process without waiting for the limit of a stall, and ends when it goes on."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=2)
    scenario[2].stopped = scenario[2].lost = True
    scenario.after(seconds=45)
    # The stall itself is told at about the same time.
    scenario.value(
        'count by (training_rank) (ALERTS{alertname="TrainingRankFrozen", alertstate="firing"})',
        {'{training_rank="2"}': 1},
    )
    scenario.says(
        frozen(2, "stopped", "forward"),
        title="The process of a rank is stopped.",
        summary="The process of rank 2 of run run-a on host-a is stopped.",
        description="The process of rank 2 of run run-a on host host-a is stopped, by a signal, a debugger or a "
        "frozen container, in phase forward. Its last progress was 30s ago.",
        recommendation="Find who stopped it: a debugger or a profiler that is attached, a job scheduler that suspends, "
        "a frozen container, a SIGSTOP. kill -CONT lets it go on, if the timeout of the collective has not passed.",
        runbook_url=f"{RUNBOOKS}/TrainingRankFrozen.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario.after(seconds=30)
    scenario[2].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(frozen(2, "stopped", "forward"), stalled(2, "forward", "host-a"))
    scenario[2].exporter_lost = False
    scenario.after(seconds=15)
    scenario.fires(frozen(2, "stopped", "forward"), stalled(2, "forward", "host-a"))
    scenario[2].stopped = scenario[2].lost = False
    resume(scenario)
    scenario.after(seconds=15)
    # Nor for one evaluation is it called stopped with a progress of a moment ago.
    scenario.value('count(ALERTS{alertname="TrainingRankFrozen", alertstate="firing"}) or vector(0)', {"{}": 0})
    scenario.after(seconds=15)
    scenario.silent()
    return scenario


def stopped_for_a_moment() -> Scenario:
    """A process that one scrape finds stopped, as a profiler does, is not frozen; nor is one that ends stopped."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario[2].stopped = True
    scenario.after(seconds=15)
    scenario[2].stopped = False
    scenario.after(minutes=2)
    scenario.never()
    return scenario


def _leave_behind(scenario: Scenario, rank: int) -> None:
    """Let one rank stand where it is while the others go on without it."""
    edge = scenario.world.now
    for _ in range(5):
        scenario.after(seconds=15)
        scenario[rank].last_edge = edge


def silent() -> Scenario:
    """Names a rank that shows no progress while others go on, until it does."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario[1].phase = Phase.DATA
    scenario[1].groups.clear()
    scenario[1].last_edge = scenario.world.now - 15
    _leave_behind(scenario, 1)
    scenario.fires(frozen(1, "silent", "data"))
    scenario.says(
        frozen(1, "silent", "data"),
        title="A rank makes no progress while others go on.",
        summary="Rank 1 of run run-a on host-a has made no progress for 1m 0s while others go on.",
        description="The process of rank 1 of run run-a on host host-a lives, but has shown no progress for 1m 0s "
        "in phase data, while other ranks go on.",
        recommendation="Take its stack on its host: `laggard stacks --run 'run-a' --ranks 1`; look for a device "
        "error in dmesg (XID) and for a mount that does not answer.",
        runbook_url=f"{RUNBOOKS}/TrainingRankFrozen.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[1].last_edge = scenario.world.now
    scenario.after(seconds=15)
    scenario.silent()
    return scenario


def slow_batches() -> Scenario:
    """A rank whose data workers all became slow may wait for as long as a batch takes then, and no longer."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    for rank in scenario.world.ranks:
        # A batch may take 40 s before anybody waits for it.
        rank.fetch, rank.workers = 0.2, 200 if rank.run == RUN else 2
    scenario.after(minutes=3)
    begin = scenario.world.now
    waiting = [scenario.world.ranks[number] for number in (1, 5)]
    for rank in waiting:
        rank.phase = Phase.DATA
        rank.groups.clear()
    for _ in range(5):
        scenario.after(seconds=15)
        for rank in waiting:
            rank.last_edge = begin
    other = Firing("TrainingRankFrozen", 1, "data", "host-a", run="run-b", more=(("training_cause", "silent"),))
    scenario.fires(other)
    for _ in range(6):
        scenario.after(seconds=15)
        for rank in waiting:
            rank.last_edge = begin
    scenario.fires(other, frozen(1, "silent", "data"))
    return scenario


def waits_for_long() -> Scenario:
    """A rank that waits in a collective while others go on is not frozen, and in a stalled run nobody is."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario[1].phase = Phase.COMMUNICATION
    _leave_behind(scenario, 1)
    scenario.never()
    scenario.after(minutes=1)
    stick(scenario, culprit=3)
    scenario.after(minutes=3)
    scenario.fires(stalled(3, "forward", "host-a"))
    return scenario


def restarts() -> Scenario:
    """Tells of three restarts within an hour, through a lost scrape, not of two; forgets them after an hour."""
    scenario = Scenario(ranks(2))
    scenario.after(minutes=4)
    for attempt in range(3):
        scenario.never()
        for rank in scenario.world.ranks:
            rank.pid = attempt + 2
            rank.start = rank.last_edge = scenario.world.now
        scenario.after(minutes=4)
    scenario.fires(LOOP)
    scenario.says(
        LOOP,
        title="A training run restarts again and again.",
        summary="Run run-a has restarted 3 times in the last hour.",
        description="A rank of run run-a has restarted 3 times in the last hour. Each restart costs the work since"
        " the last checkpoint, and the start itself.",
        recommendation="In each attempt, read the end of the log of the rank that failed first: an error that "
        "comes back at the same step is in the code or the data, one that comes back on the same host is the host's. "
        "Stop the restarts until you know.",
        runbook_url=f"{RUNBOOKS}/TrainingRestartLoop.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    for rank in scenario.world.ranks:
        rank.lost = rank.exporter_lost = True
    scenario.after(seconds=15)
    for rank in scenario.world.ranks:
        rank.lost = rank.exporter_lost = False
    scenario.after(minutes=1)
    scenario.fires(LOOP)
    scenario.after(minutes=51)
    scenario.silent()
    return scenario


def restarts_in_containers() -> Scenario:
    """Where each process is number 1, the starts count."""
    scenario = Scenario(ranks(2))
    scenario.after(minutes=4)
    for _ in range(3):
        scenario.never()
        scenario[1].start = scenario[1].last_edge = scenario.world.now
        scenario.after(minutes=4)
    scenario.fires(LOOP)
    return scenario


PLAYS: tuple[Play, ...] = (
    killed,
    given_up,
    killed_in_a_pause,
    asked_to_end,
    no_death,
    stopped,
    stopped_for_a_moment,
    silent,
    slow_batches,
    waits_for_long,
    restarts,
    restarts_in_containers,
)
