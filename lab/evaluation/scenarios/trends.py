"""Runs that become slower than they were, or than earlier ones."""

from __future__ import annotations

from dataclasses import replace

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Slow
from lab.evaluation.model.job import Case, Expectation
from lab.evaluation.scenarios.registry import drawn
from laggard.shared.phases import Phase

_PAST = 7400.0


def _own_past(draw: Draw, factor: float) -> Case:
    draw.shorten(2.0)
    phase = (Phase.FORWARD, Phase.BACKWARD, None)[draw.random.integers(3)]
    begin = draw.plain.start + draw.plain.startup + draw.plain.compile + _PAST
    slow = Slow(begin=begin, ranks=tuple(range(draw.ranks)), phase=phase, factor=factor, ramp=draw.between(1, 300))
    return Case(draw.job(begin + 3000, faults=(slow,), pauses=()), facts={"effect": factor})


@drawn(6)
def slower_than_before(draw: Draw) -> Case:
    """All ranks become slower after two hours."""
    case = _own_past(draw, draw.between(1.08, 1.4))
    begin = case.job.faults[0].begin
    return Case(
        case.job, (Expectation("TrainingRegression", (), "past", begin),), near=("TrainingStraggler",), facts=case.facts
    )


@drawn(6)
def hardly_slower_than_before(draw: Draw) -> Case:
    """All ranks become slower by up to 4 %."""
    return Case(_own_past(draw, draw.between(1.005, 1.04)).job, near=("TrainingRegression", "TrainingStraggler"))


def _earlier(draw: Draw, factor: float) -> Case:
    draw.shorten(2.0)
    plain = replace(draw.plain, pauses=(), workload=f"workload-{draw.name}")
    end = plain.start + plain.startup + plain.compile + draw.between(900, 1500)
    before = replace(plain, run=f"{plain.run}-earlier", own=plain.own / factor, end=end, horizon=end + 400)
    start = end + draw.between(400, 700)
    job = replace(plain, start=start, seed=plain.seed + 1, earlier=(before,), horizon=start + 3400)
    return Case(job, facts={"effect": factor})


@drawn(6)
def slower_than_earlier(draw: Draw) -> Case:
    """A run is slower than the one before it."""
    case = _earlier(draw, draw.between(1.08, 1.4))
    expected = (Expectation("TrainingRegression", (), "earlier_runs", case.job.start + case.job.startup),)
    return Case(case.job, expected, near=("TrainingStraggler",), facts=case.facts)


@drawn(6)
def like_earlier(draw: Draw) -> Case:
    """A run is about as fast as the one before it."""
    return Case(_earlier(draw, draw.between(0.97, 1.04)).job, near=("TrainingRegression",))
