"""How a scenario makes a rank slow, and the alert that tells."""

from __future__ import annotations

from scenario import Firing, Scenario, ranks
from world import TRANSFER, WORK, Rank


def straggler(rank: int, phase: str, host: str = "host-a") -> Firing:
    """Return the alert."""
    return Firing("TrainingStraggler", rank, phase, host)


def make_slow(rank: Rank, factor: float, *phases: str) -> None:
    """Make a rank's own time longer by a factor, all of it in some phases, or in all by the same factor."""
    for phase in phases:
        rank.work[phase] = WORK[phase] + (factor - 1) * sum(WORK.values()) / len(phases)
    if not phases:
        rank.work = {phase: seconds * factor for phase, seconds in WORK.items()}


def quantile(phase: str, name: str) -> str:
    """Return the gauge with a quantile of a phase."""
    return f"training_phase_duration_quantile_seconds{{phase={phase},quantile={name}}}"


def unsteady(rank: Rank, own: float = 1.1, wait: float = TRANSFER, longest_wait: float = TRANSFER) -> None:
    """Say how a rank's steps differ: own time of one in twenty over the usual, and the wait of both."""
    for phase, seconds in rank.work.items():
        rank.gauges[quantile(phase, "p50")] = seconds
        rank.gauges[quantile(phase, "p95")] = seconds * own
    rank.gauges[quantile("communication", "p50")] = wait
    rank.gauges[quantile("communication", "p95")] = longest_wait


def one_of(count: int, factor: float = 1.3, phase: str = "data", per_host: int = 8) -> Scenario:
    """Return a scenario in which the last of some ranks has just become slow."""
    scenario = Scenario(ranks(count, per_host))
    scenario.after(minutes=3)
    make_slow(scenario[count - 1], factor, phase)
    return scenario
