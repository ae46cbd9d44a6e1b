"""GPUs that are broken, held back, or hardly used."""

from __future__ import annotations

from dataclasses import replace

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Death, Fault, GpuFault, Throttle
from lab.evaluation.model.job import Case, Expectation, Gpus
from lab.evaluation.scenarios.registry import drawn

#: Alert -> faults that it must name, with the least and the greatest size of each.
_FAULTS: dict[str, tuple[tuple[str, float, float], ...]] = {
    "TrainingGpuEccErrors": (("ecc", 0.2, 3), ("sram", 1, 1)),
    "TrainingGpuRecoveryNeeded": (("reset", 1, 1),),
    "TrainingGpuRowRemap": (("remap_failed", 1, 1), ("remap_pending", 1, 1)),
    "TrainingGpuPcieDegraded": (("width", 4, 8), ("generation", 3, 3), ("replays", 8, 100)),
    "TrainingGpuNvlinkDegraded": (("links", 1, 4), ("recoveries", 0.3, 4), ("fabric", 1, 1)),
}
_HEALTH = (
    *_FAULTS,
    "TrainingGpuLost",
    "TrainingGpuXidCritical",
    "TrainingGpuXidContained",
    "TrainingGpuThrottled",
    "TrainingGpuClockLow",
)


def _gpus(draw: Draw) -> Gpus:
    return Gpus(sm=draw.between(0.6, 0.85), tensor=draw.between(0.2, 0.5), capped=draw.between(0.0, 0.4))


@drawn(30)
def broken(draw: Draw) -> Case:
    """GPUs of up to three ranks are broken, each in its way, and training goes on."""
    draw.shorten(5.0)
    begin = draw.begin()
    alerts = [list(_FAULTS)[index] for index in draw.random.permutation(len(_FAULTS))[: min(3, draw.ranks)]]
    faults: list[Fault] = []
    expected: list[Expectation] = []
    ranks = draw.random.permutation(draw.ranks)[: len(alerts)]
    for alert, rank in zip(alerts, map(int, ranks), strict=True):
        kinds = _FAULTS[alert]
        kind, low, high = kinds[draw.random.integers(len(kinds))]
        size = draw.between(low, high)
        size = size if kind in ("ecc", "replays", "recoveries") else float(round(size))
        faults.append(GpuFault(begin=begin, rank=rank, kind=kind, size=size))
        expected.append(Expectation(alert, (rank,), begin=begin))
    near = tuple(set(_HEALTH) - set(alerts))
    job = draw.job(begin + 2100, faults=tuple(faults), gpus=_gpus(draw), push=False, pauses=())
    return Case(job, tuple(expected), near=near)


@drawn(11)
def hardly_broken(draw: Draw) -> Case:
    """GPUs have errors that they correct, and faults of the application."""
    draw.shorten(5.0)
    begin, (rank,) = draw.begin(), draw.some(1)
    faults = (
        GpuFault(begin=begin, rank=rank, kind="corrected", size=draw.between(0.5, 20)),
        GpuFault(begin=begin, rank=rank, kind="xid_31", size=1),
        GpuFault(begin=begin, rank=rank, kind="replays", size=draw.between(0.5, 2.8)),
        GpuFault(begin=begin, rank=rank, kind="link_replays", size=draw.between(0.5, 20)),
        Throttle(begin=begin, ranks=(rank,), clock=0.99, told=draw.between(0.02, 0.08), celsius=5),
    )
    return Case(draw.job(begin + 2400, faults=faults, gpus=_gpus(draw), pauses=()), near=_HEALTH)


def _gone(draw: Draw, alerts: tuple[str, ...], kinds: tuple[tuple[str, float], ...]) -> Case:
    """Return a case in which a GPU takes the process of its rank with it."""
    draw.shorten(5.0)
    begin, (rank,) = draw.begin(), draw.some(1)
    death = Death(begin=begin + draw.between(1, 20), ranks=(rank,))
    faults = tuple(GpuFault(begin=begin, rank=rank, kind=kind, size=size) for kind, size in kinds)
    dead = tuple(
        Expectation(alert, (rank,), begin=death.begin)
        for alert in ("TrainingRankDied", "TrainingStalled", "TrainingRankMissing")
    )
    named = tuple(Expectation(alert, (rank,), begin=begin) for alert in alerts)
    job = draw.job(begin + 500, faults=(*faults, death), gpus=_gpus(draw), push=False, pauses=())
    return Case(job, (*named, *dead), near=tuple(set(_HEALTH) - set(alerts)))


@drawn(11)
def gpu_lost(draw: Draw) -> Case:
    """A GPU falls off the bus, and the process of its rank dies."""
    return _gone(draw, ("TrainingGpuLost", "TrainingGpuXidCritical"), (("lost", 0), ("xid_79", 1)))


@drawn(11)
def gpu_contained(draw: Draw) -> Case:
    """A GPU contains an error of its memory by ending the process of its rank."""
    return _gone(draw, ("TrainingGpuXidContained",), (("xid_94", 1),))


def _held_back(draw: Draw, reasons: tuple[str, ...], celsius: tuple[float, float]) -> Case:
    """Return a case in which the GPU of a rank computes more slowly."""
    draw.shorten(10.0)
    begin, (rank,), clock = draw.begin(), draw.some(1), draw.between(0.5, 0.76)
    reason = reasons[draw.random.integers(len(reasons))]
    throttle = Throttle(
        begin=begin,
        ranks=(rank,),
        clock=clock,
        reason=reason,
        told=draw.between(0.6, 1),
        celsius=draw.between(*celsius),
    )
    job = draw.job(
        begin + draw.patience(1 / clock) + 720, faults=(throttle,), push=False, pauses=(),
        gpus=replace(_gpus(draw), capped=draw.between(0, 0.25)),
    )  # fmt: skip
    expected = (
        Expectation("TrainingStraggler", (rank,), "", begin),
        Expectation("TrainingThermalSlowdown" if "thermal" in reason else "TrainingPowerSlowdown", (rank,), "", begin),
        *((Expectation("TrainingGpuThrottled", (rank,), "", begin),) if reason != "sw_power_cap" else ()),
        # With two ranks nobody knows whose clock is the usual one.
        *(() if draw.pair else (Expectation("TrainingGpuClockLow", (rank,), "", begin),)),
    )
    near = (
        "TrainingPowerSlowdown" if "thermal" in reason else "TrainingThermalSlowdown",
        "TrainingGpuPcieDegraded",
        "TrainingGpuNvlinkDegraded",
    )
    return Case(job, expected, near=near, facts={"effect": 1 + 0.9 * (1 / clock - 1)})


@drawn(12, least=4)
def hot(draw: Draw) -> Case:
    """Heat holds the GPU of a rank back."""
    return _held_back(draw, ("hw_thermal", "sw_thermal"), (8, 20))


@drawn(12, least=4)
def starved(draw: Draw) -> Case:
    """Power holds the GPU of a rank back."""
    return _held_back(draw, ("hw_power_brake", "sw_power_cap"), (-5, 0))


@drawn(11, least=4)
def lukewarm(draw: Draw) -> Case:
    """A GPU is a little warmer and slower than the others, and all are at their power limit."""
    draw.shorten(10.0)
    begin, (rank,) = draw.begin(), draw.some(1)
    throttle = Throttle(
        begin=begin, ranks=(rank,), clock=draw.between(0.945, 0.99), told=draw.between(0.01, 0.07),
        celsius=draw.between(2, 7),
    )  # fmt: skip
    gpus = Gpus(capped=draw.between(0.5, 0.9), clock=0.94)
    job = draw.job(begin + draw.patience() + 720, faults=(throttle,), gpus=gpus, push=False, pauses=())
    return Case(
        job,
        near=(
            "TrainingThermalSlowdown",
            "TrainingPowerSlowdown",
            "TrainingGpuThrottled",
            "TrainingGpuClockLow",
            "TrainingStraggler",
        ),
    )


@drawn(20)
def inefficient(draw: Draw) -> Case:
    """The GPUs of a run are at their power limit, have little to do, or do not use their tensor cores."""
    draw.shorten(5.0)
    begin = draw.plain.start + draw.plain.startup + draw.plain.compile
    capped, which = draw.chance(0.65), draw.random.integers(3)
    gpus = Gpus(
        sm=draw.between(0.08, 0.32) if which == 0 else draw.between(0.65, 0.85),
        tensor=draw.between(0.2, 0.4),
        capped=draw.between(0.9, 1.0) if capped else draw.between(0, 0.3),
        clock=draw.between(0.6, 0.84) if capped else 0.95,
    )
    gpus = replace(gpus, tensor=gpus.sm * (draw.between(0.005, 0.08) if which == 1 else draw.between(0.25, 0.6)))
    expected = (
        *((Expectation("TrainingGpuPowerCapped", begin=begin),) if capped else ()),
        *((Expectation("TrainingGpuUnderused", begin=begin),) if which == 0 else ()),
        *((Expectation("TrainingGpuTensorIdle", begin=begin),) if which == 1 else ()),
    )
    near = tuple(
        {"TrainingGpuPowerCapped", "TrainingGpuUnderused", "TrainingGpuTensorIdle"} - {each.alert for each in expected}
    )
    return Case(draw.job(begin + 2400, gpus=gpus, pauses=(), push=False, transfer=0.05), expected, near=near)


@drawn(14)
def idle_cores(draw: Draw) -> Case:
    """The GPUs of a run have little to do, or do not use their tensor cores."""
    draw.shorten(5.0)
    begin = draw.plain.start + draw.plain.startup + draw.plain.compile
    idle = draw.chance(0.5)
    sm = draw.between(0.08, 0.32) if idle else draw.between(0.65, 0.85)
    gpus = Gpus(sm=sm, tensor=sm * (0.4 if idle else draw.between(0.005, 0.08)))
    job = draw.job(begin + 2400, gpus=gpus, pauses=(), push=False, transfer=0.05)
    return Case(
        job,
        (Expectation("TrainingGpuUnderused" if idle else "TrainingGpuTensorIdle", begin=begin),),
        near=("TrainingGpuPowerCapped",),
    )


@drawn(11)
def nearly_inefficient(draw: Draw) -> Case:
    """The GPUs of a run are used, but could be used better."""
    draw.shorten(5.0)
    sm = draw.between(0.48, 0.6)
    gpus = Gpus(sm=sm, tensor=sm * draw.between(0.125, 0.2), capped=draw.between(0.2, 0.42), clock=draw.between(0.8, 1))
    begin = draw.plain.start + draw.plain.startup + draw.plain.compile
    return Case(
        draw.job(begin + 2400, gpus=gpus, pauses=(), push=False),
        near=("TrainingGpuPowerCapped", "TrainingGpuUnderused", "TrainingGpuTensorIdle"),
    )
