"""Compares the ranks of a traced run: who makes the others wait, and in which phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.shared.phases import OWN_PHASES, Phase
from laggard_cli.kineto.run import TracedRank, TracedRun
from laggard_cli.kineto.trace import Times
from laggard_cli.pack import threshold

#: One that leads in most steps may be one of several that take turns; a probability beyond this is no verdict.
BY_TURNS = 0.1
#: Nobody is compared alone.
COMPARED = 2
#: Usual steps that one step counts as at most: one hiccup would hide that all others are slow too.
_HICCUP = 2.0
#: Six standard deviations, as median absolute deviations: so far apart are means of ranks that only vary.
_DEVIATIONS = 6 * 1.4826


@dataclass(frozen=True)
class Score:
    """How one rank's own time compares with that of its peers."""

    rank: TracedRank
    own: float
    reference: float
    #: Steps in which it exceeds the reference by half of what it does on average, and all of its steps.
    led: int
    steps: int
    #: Probability of so many if ranks took turns to be slow.
    by_turns: float
    #: Seconds by which it waits less in the mean step than its peers do.
    waits_less: float

    @property
    def ratio(self) -> float:
        """The rank's own time over that of its peers."""
        return self.own / self.reference if self.reference else 0.0

    @property
    def delays(self) -> bool:
        """Whether its excess is there in most steps, and the others wait for it."""
        return (
            self.led / self.steps >= threshold("persistence_share")
            and self.waits_less >= threshold("straggler_wait_share") * (self.own - self.reference) > 0
        )


def compare(run: TracedRun) -> list[Score]:
    """Return the score of each rank in its group; none of a rank without known peers, or where no wait can be seen."""
    if not run.communicates or run.unplaced:
        return []
    # Where the run waits for data as a whole ranks take turns, and the rules leave data out of the comparison.
    limited = run.best_share(Phase.DATA) > threshold("input_bound_share")
    return [
        score for group in run.groups.values() if len(group) >= COMPARED for score in _scores(group, limited=limited)
    ]


def _scores(group: Sequence[TracedRank], *, limited: bool) -> list[Score]:
    own = [rank.steps.own - (rank.steps.phases[Phase.DATA] if limited else 0.0) for rank in group]
    means = np.array([_without_hiccups(each).mean() for each in own])
    waits = [rank.mean(Phase.COMMUNICATION) for rank in group]
    reference = peers_own(means)
    led = [int(np.sum(each > (reference + mean) / 2)) for each, mean in zip(own, means, strict=True)]
    return [
        Score(
            rank,
            own=float(means[place]),
            reference=reference,
            led=led[place],
            steps=len(rank.steps),
            by_turns=by_turns(led[place], len(rank.steps), len(group)),
            waits_less=float(np.median(waits[:place] + waits[place + 1 :])) - waits[place],
        )
        for place, rank in enumerate(group)
    ]


def _without_hiccups(own: Times) -> Times:
    return np.minimum(own, _HICCUP * np.median(own))


def by_turns(led: int, steps: int, ranks: int) -> float:
    """Return the probability that one of the ranks leads in so many steps if each leads with the same chance."""
    one = 1 / ranks
    tail = sum(math.comb(steps, count) * one**count * (1 - one) ** (steps - count) for count in range(led, steps + 1))
    return min(1.0, ranks * tail)


def usual_limit(run: TracedRun) -> float:
    """Return the score from which on a rank is slow."""
    fine = run.steps >= threshold("straggler_fine_steps")
    return threshold("straggler_score_fine" if fine else "straggler_score")


def chance_limit(run: TracedRun) -> float:
    """Return the score that is beyond chance too, with so few steps that vary so much."""
    noise = max(threshold("straggler_noise"), _DEVIATIONS * _spread(run))
    return max(usual_limit(run), 1 + noise / math.sqrt(run.steps))


def _spread(run: TracedRun) -> float:
    """Return the median absolute deviation of a rank's own time, over its median, of the usual rank."""
    own = [(rank.steps.own, float(np.median(rank.steps.own))) for rank in run.ranks]
    return float(np.median([np.median(np.abs(each - usual)) / usual if usual else 0.0 for each, usual in own]))


def peers_own(means: Times) -> float:
    """Return the own time that peers need, as the rules reckon it."""
    if len(means) >= threshold("peer_median_ranks"):
        return float(np.median(means))
    if len(means) >= threshold("peer_quartile_ranks"):
        return float(np.quantile(means, 0.25))
    return float(means.min())


def _usual(rank: TracedRank, phase: Phase) -> float:
    """Return the seconds of a phase in the median step: a straggler is one in most steps."""
    return float(np.median(rank.steps.phases[phase]))


def phase_of(rank: TracedRank, peers: Sequence[TracedRank]) -> str:
    """Return the phase that explains most of a rank's excess over its peers' median, or ``mixed``."""
    usual = {phase: float(np.median([_usual(peer, phase) for peer in peers])) for phase in OWN_PHASES}
    excess = {phase: max(0.0, _usual(rank, phase) - usual[phase]) for phase in OWN_PHASES}
    total = sum(excess.values())
    phase = max(excess, key=lambda each: excess[each])
    # A rank that is slow in all of them exceeds its peers in each by its share of the work.
    needed = 0.5 * (1 + usual[phase] / (sum(usual.values()) or 1.0))
    return phase.label if total and excess[phase] / total > needed else "mixed"
