"""Losses and gradients that are not finite, or jump."""

from __future__ import annotations

from dataclasses import replace

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import NotFinite, Spike
from lab.evaluation.model.job import Case, Expectation, Job, Numbers
from lab.evaluation.scenarios.registry import drawn


def _late(draw: Draw) -> Job:
    """Return a job whose loss hardly falls any more."""
    draw.shorten(10.0)
    last = draw.between(0.5, 4)
    numbers = Numbers(
        first=last * draw.between(1.0, 1.3), last=last, half=draw.between(600, 3000), noise=draw.between(0.005, 0.06),
        norm=draw.between(0.3, 5, evenly=False),
    )  # fmt: skip
    return replace(draw.plain, numbers=numbers, pauses=())


@drawn(11)
def numbers_not_finite(draw: Draw) -> Case:
    """Losses, gradients or both are no longer finite, for good or now and then."""
    job, begin, which = _late(draw), draw.begin(), draw.random.integers(3)
    faults = [NotFinite(begin=begin, number=name, rate=draw.between(0.6, 10)) for name in ("loss", "gradient")]
    expected = [
        Expectation("TrainingLossNotFinite", (), "", begin),
        Expectation("TrainingGradientNotFinite", (), "", begin),
    ]
    # One of them alone, or both.
    if which < len(faults):
        del faults[which], expected[which]
    near = tuple(
        {"TrainingLossSpike", "TrainingGradientNormSpike", "TrainingLossNotFinite", "TrainingGradientNotFinite"}
        - {each.alert for each in expected}
    )
    return Case(replace(job, faults=tuple(faults), horizon=begin + 900), tuple(expected), near=near)


@drawn(5)
def all_numbers_not_finite(draw: Draw) -> Case:
    """Losses and gradients are no longer finite."""
    job, begin = _late(draw), draw.begin()
    faults = tuple(NotFinite(begin=begin, number=name, rate=draw.between(0.6, 10)) for name in ("loss", "gradient"))
    expected = (
        Expectation("TrainingLossNotFinite", begin=begin),
        Expectation("TrainingGradientNotFinite", begin=begin),
    )
    return Case(
        replace(job, faults=faults, horizon=begin + 900),
        expected,
        near=("TrainingLossSpike", "TrainingGradientNormSpike"),
    )


@drawn(11)
def numbers_finite(draw: Draw) -> Case:
    """One loss is not finite, and a gradient scaler skips steps now and then."""
    job, begin = _late(draw), draw.begin()
    assert job.numbers is not None
    numbers = replace(job.numbers, scaler=True)
    faults = (
        # One in all, since the time is not long enough for a second.
        NotFinite(begin=begin, end=begin + 75, number="loss", rate=1.0),
        NotFinite(begin=begin - 60, number="gradient", rate=draw.between(0.5, 3)),
    )
    return Case(
        replace(job, numbers=numbers, faults=faults, horizon=begin + 900),
        near=("TrainingLossNotFinite", "TrainingGradientNotFinite"),
    )


def _jump(draw: Draw, loss: float, gradient: float) -> Case:
    job = _late(draw)
    begin = job.start + job.startup + job.compile + 22 * job.own + draw.between(1500, 2100)
    faults = (Spike(begin=begin, number="loss", factor=loss), Spike(begin=begin, number="gradient", factor=gradient))
    return Case(replace(job, faults=faults, horizon=begin + 900), facts={"loss": loss, "gradient": gradient})


@drawn(11)
def numbers_jump(draw: Draw) -> Case:
    """Loss and gradients jump and stay up."""
    case = _jump(draw, draw.between(1.7, 4), draw.between(13, 100, evenly=False))
    begin = case.job.faults[0].begin
    expected = (Expectation("TrainingLossSpike", begin=begin), Expectation("TrainingGradientNormSpike", begin=begin))
    return Case(case.job, expected, near=("TrainingLossNotFinite", "TrainingGradientNotFinite"), facts=case.facts)


@drawn(8)
def numbers_hardly_jump(draw: Draw) -> Case:
    """Loss and gradients jump by less than what is a spike."""
    return Case(
        _jump(draw, draw.between(1.02, 1.2), draw.between(2, 8)).job,
        near=("TrainingLossSpike", "TrainingGradientNormSpike"),
    )


@drawn(5)
def numbers_fall(draw: Draw) -> Case:
    """The loss falls fast, as at the start of a training."""
    job = _late(draw)
    assert job.numbers is not None
    numbers = replace(job.numbers, first=8.0, last=2.0, half=draw.between(300, 1500))
    return Case(
        replace(job, numbers=numbers, horizon=job.start + 3000), near=("TrainingLossSpike", "TrainingGradientNormSpike")
    )
