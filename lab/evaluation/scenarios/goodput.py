"""Runs that spend their time on other things than training, and restart loops."""

from __future__ import annotations

from lab.evaluation.draw import Draw
from lab.evaluation.model.job import Case, Expectation, Pause
from lab.evaluation.scenarios.registry import drawn
from laggard.shared.phases import Phase


def _evaluating(draw: Draw, share: float) -> Case:
    draw.shorten(1.0)
    draw.calm(0.03)
    every = draw.between(150, 400)
    pauses = (Pause(Phase.EVALUATION, every, share * every),)
    return Case(draw.job(draw.plain.start + 4400, pauses=pauses), facts={"share": share})


@drawn(11)
def little_training(draw: Draw) -> Case:
    """Evaluations take more than half of the time."""
    case = _evaluating(draw, draw.between(0.52, 0.7))
    expected = (Expectation("TrainingGoodputLow", begin=draw.plain.start + 2700),)
    return Case(case.job, expected, near=("TrainingStalled", "TrainingCheckpointSlow"), facts=case.facts)


@drawn(11)
def much_training(draw: Draw) -> Case:
    """Evaluations take up to a quarter of the time."""
    case = _evaluating(draw, draw.between(0.1, 0.25))
    return Case(case.job, near=("TrainingGoodputLow", "TrainingStalled"), facts=case.facts)


def _restarting(draw: Draw, count: int) -> Case:
    draw.shorten(3.0)
    plain = draw.plain
    gap, down = draw.between(240, 480), draw.between(10, 60)
    first = plain.start + plain.startup + plain.compile + gap
    restarts = tuple(first + number * (gap + down) for number in range(count))
    moves = draw.chance(0.3)
    job = draw.job(restarts[-1] + down + 600, restarts=restarts, down=down, moves=moves, pauses=(), push=False)
    return Case(job, allowed=("TrainingRankMissing", "TrainingStalled", "TrainingRankDied"))


@drawn(11)
def restarting(draw: Draw) -> Case:
    """A run fails and restarts again and again."""
    case = _restarting(draw, int(draw.random.integers(3, 6)))
    begin = case.job.restarts[2] + case.job.down
    return Case(case.job, (Expectation("TrainingRestartLoop", begin=begin),), (*case.allowed, "TrainingGoodputLow"))


@drawn(11)
def restarted(draw: Draw) -> Case:
    """A run fails and restarts once or twice."""
    case = _restarting(draw, int(draw.random.integers(1, 3)))
    return Case(case.job, allowed=case.allowed, near=("TrainingRestartLoop",))
