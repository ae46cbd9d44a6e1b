"""How a scenario makes a run stand still, and the alert that tells."""

from __future__ import annotations

from laggard.shared.phases import Phase, RankState
from scenario import Firing, Scenario
from world import RUN


def stick(scenario: Scenario, culprit: int | None, phase: Phase = Phase.FORWARD) -> None:
    """Stop all steps: every rank waits in the next collective, but the culprit."""
    scenario.world.training.discard(RUN)
    for rank in scenario.world.ranks:
        if rank.alive and rank.state is RankState.RUNNING:
            waiting = {group: (sequence + 1, True) for group, (sequence, _) in rank.groups.items()}
            if rank.rank == culprit:
                rank.phase = phase
            else:
                rank.enters(Phase.COMMUNICATION, **waiting)


def resume(scenario: Scenario) -> None:
    """Let all ranks make steps again."""
    for rank in scenario.world.ranks:
        rank.phase = Phase.FORWARD
    scenario.world.training.add(RUN)


def stalled(rank: int | None = None, phase: str = "", host: str = "", source: str = "exporter") -> Firing:
    """Return the alert, as the node exporter's word unless told otherwise."""
    return Firing("TrainingStalled", rank, phase, host, source)


def died(rank: int, phase: str = "forward", host: str = "host-a") -> Firing:
    """Return the alert about a dead process."""
    return Firing("TrainingRankDied", rank, phase, host)


def failed(
    by: str, how: str = "", *, rank: int | None = None, phase: str = "", host: str = "", run: str = RUN, after: str = ""
) -> Firing:
    """Return the alert about a run that ended by a failure: of the rank that ended first, where that is known."""
    more = (("training_ended_after", after), ("training_ended_by", by), ("training_ended_with", how))
    return Firing("TrainingRunFailed", rank, phase, host, run=run, more=more)


def frozen(rank: int, cause: str, phase: str, host: str = "host-a") -> Firing:
    """Return the alert about a process that stands still."""
    return Firing("TrainingRankFrozen", rank, phase, host, more=(("training_cause", cause),))


def begin_again(scenario: Scenario) -> None:
    """Start all ranks again."""
    for rank in scenario.world.ranks:
        rank.alive, rank.state, rank.start = True, RankState.STARTING, scenario.world.now - 1
        rank.last_edge = scenario.world.now
