"""How a scenario makes a rank slow, and the alert that tells."""

from __future__ import annotations

from scenario import Firing, Scenario, ranks
from world import WORK, Rank


def straggler(rank: int, phase: str, host: str = "host-a") -> Firing:
    """Return the alert."""
    return Firing("TrainingStraggler", rank, phase, host)


def make_slow(rank: Rank, factor: float, *phases: str) -> None:
    """Make a rank's own time longer by a factor, all of it in some phases, or in all by the same factor."""
    for phase in phases:
        rank.work[phase] = WORK[phase] + (factor - 1) * sum(WORK.values()) / len(phases)
    if not phases:
        rank.work = {phase: seconds * factor for phase, seconds in WORK.items()}


def one_of(count: int, factor: float = 1.3, phase: str = "data", per_host: int = 8) -> Scenario:
    """Return a scenario in which the last of some ranks has just become slow."""
    scenario = Scenario(ranks(count, per_host))
    scenario.after(minutes=3)
    make_slow(scenario[count - 1], factor, phase)
    return scenario
