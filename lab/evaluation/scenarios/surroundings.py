"""What surrounds a run: drivers, GPUs without work, a second run of the same name, labels that something adds."""

from __future__ import annotations

from dataclasses import replace

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Held, Idle, MoreSeries, OtherDriver, OtherLibrary
from lab.evaluation.model.job import Case, Expectation, Gpus
from lab.evaluation.scenarios.registry import drawn


def _gpus(draw: Draw) -> Gpus:
    return Gpus(sm=draw.between(0.6, 0.85), tensor=draw.between(0.2, 0.5))


def _idle(draw: Draw, left: float) -> tuple[Case, tuple[int, ...]]:
    draw.shorten(5.0)
    ranks = draw.some(2) if draw.chance(0.5) else tuple(range(draw.ranks))
    fault = Idle(begin=draw.begin(), ranks=ranks, left=left)
    job = draw.job(fault.begin + 2100, faults=(fault,), gpus=_gpus(draw), push=False, pauses=())
    return Case(job, allowed=("TrainingGpuUnderused", "TrainingGpuTensorIdle")), ranks


@drawn(11)
def idle_gpus(draw: Draw) -> Case:
    """GPUs of some ranks or of all do nothing, though the ranks train: on the processor."""
    case, ranks = _idle(draw, 0.0)
    expected = (Expectation("TrainingGpuIdle", ranks, begin=case.job.faults[0].begin),)
    return replace(case, expected=expected, near=("TrainingGpuHeld", "TrainingStraggler"))


@drawn(11)
def hardly_busy_gpus(draw: Draw) -> Case:
    """GPUs of some ranks or of all have little to do: some twentieth of the time."""
    case, _ = _idle(draw, draw.between(0.035, 0.1))
    return replace(case, near=("TrainingGpuIdle",))


def _held(draw: Draw, share: float, busy: float) -> Case:
    draw.shorten(5.0)
    fault = Held(begin=draw.begin(), rank=int(draw.random.integers(draw.ranks)), share=share, busy=busy)
    return Case(draw.job(fault.begin + 2850, faults=(fault,), gpus=_gpus(draw), push=False, pauses=()))


@drawn(11)
def held_gpu(draw: Draw) -> Case:
    """What an ended run left behind holds the memory of a GPU."""
    case = _held(draw, draw.between(0.06, 0.95), draw.between(0, 0.01))
    (fault,) = case.job.of(Held)
    named = Expectation("TrainingGpuHeld", (str(fault.rank + draw.ranks),), begin=fault.begin)
    return replace(case, expected=(named,), near=("TrainingGpuIdle",))


@drawn(11)
def spare_gpu(draw: Draw) -> Case:
    """A GPU that the run does not use is free but for a context, or somebody works on it."""
    used = draw.chance(0.5)
    case = _held(draw, draw.between(0.1, 0.9) if used else draw.between(0.003, 0.04), 0.03 if used else 0.0)
    return replace(case, near=("TrainingGpuHeld",))


def _drivers(draw: Draw, seconds: tuple[float, float]) -> tuple[Case, bool]:
    """Return a case in which hosts differ for so long, by the version that is loaded or by what lies beside it."""
    draw.shorten(5.0)
    loaded, begin, per_host = draw.chance(0.5), draw.begin(), max(1, min(8, draw.ranks // 2))
    first = int(draw.random.integers(draw.ranks // per_host)) * per_host
    kind = OtherDriver if loaded else OtherLibrary
    fault = kind(begin=begin, end=begin + seconds[not loaded], ranks=tuple(range(first, first + per_host)))
    job = draw.job(begin + 1300, faults=(fault,), gpus=_gpus(draw), push=False, pauses=(), per_host=per_host)
    return Case(job), loaded


@drawn(11)
def drivers_differ(draw: Draw) -> Case:
    """A host has another version of the GPU driver, or its libraries were replaced under the driver."""
    case, loaded = _drivers(draw, (1e9, 1e9))
    (fault,) = (*case.job.of(OtherDriver), *case.job.of(OtherLibrary))
    named = () if loaded else (case.job.host(fault.ranks[0]),)
    return replace(
        case, expected=(Expectation("TrainingDriverMismatch", named, begin=fault.begin),), near=("TrainingGpuIdle",)
    )


@drawn(12)
def drivers_differ_shortly(draw: Draw) -> Case:
    """Hosts get another driver one after the other, or a library and its driver within a minute and a half."""
    case, _ = _drivers(draw, (draw.between(60, 510), draw.between(15, 90)))
    return replace(case, near=("TrainingDriverMismatch",))


@drawn(11)
def same_name(draw: Draw) -> Case:
    """A second run has the name of the first: whatever is said of their steps is said of both."""
    draw.shorten(2.0)
    begin = draw.begin()
    job = draw.job(begin + 700, push=False, pauses=())
    second = replace(job, start=begin, cluster="other-", seed=job.seed + 1, own=job.own * draw.between(0.9, 1.1))
    expected = (Expectation("TrainingRankClash", tuple(range(draw.ranks)), begin=begin),)
    return Case(replace(job, earlier=(second,)), expected, near=("TrainingClockSkew", "TrainingSeriesExcess"))


def _series(draw: Draw, low: float, high: float) -> Case:
    draw.shorten(2.0)
    # Beside the 85 that rules read, of the 200 that a rank has.
    fault = MoreSeries(begin=draw.begin(), count=int(draw.between(low, high)))
    return Case(draw.job(fault.begin + 720, faults=(fault,), push=False, pauses=()))


@drawn(11)
def more_series(draw: Draw) -> Case:
    """A label that changes makes the series of a rank many."""
    case = _series(draw, 480, 900)
    return replace(
        case,
        expected=(Expectation("TrainingSeriesExcess", (0,), begin=case.job.faults[0].begin),),
        near=("TrainingRankClash",),
    )


@drawn(11)
def hardly_more_series(draw: Draw) -> Case:
    """Histograms or a label double the series of a rank."""
    return replace(_series(draw, 60, 190), near=("TrainingSeriesExcess",))
