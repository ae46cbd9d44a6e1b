"""Memory that leaks, is short, or lies in pieces; and memory that only comes and goes."""

from __future__ import annotations

from dataclasses import replace

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Fault, Leak, Memory
from lab.evaluation.model.job import GIB, Case, Expectation, Job, Usage
from lab.evaluation.scenarios.registry import drawn

_KINDS = ("device_allocated", "host_rss", "worker_rss")
_WATCHED = 5400.0


def _plain(draw: Draw) -> Job:
    """Return a job whose hosts have enough memory for all of their ranks."""
    draw.shorten(3.0)
    on_host = min(draw.ranks, draw.plain.per_host)
    usage = Usage(
        host=on_host * draw.between(50, 120) * GIB, allocated=draw.between(16, 44) * GIB,
        peak=draw.between(46, 66) * GIB,
        rss=draw.between(4, 16) * GIB, workers=draw.between(2, 16) * GIB, swing=draw.between(0, 3) * GIB,
        period=draw.between(60, 500),
    )  # fmt: skip
    return replace(draw.plain, usage=replace(usage, reserved=1.1 * usage.allocated))


def _left(job: Job, kind: str) -> float:
    usage = job.usage
    assert usage is not None
    if kind == "device_allocated":
        return usage.device - usage.allocated
    return usage.host - min(job.ranks, job.per_host) * (usage.rss + usage.workers + usage.swing)


def _leaking(draw: Draw, job: Job, kind: str, ranks: tuple[int, ...] | None, hours: float) -> Leak:
    """Return a leak after which nothing is left after so many hours."""
    leaking = 1 if kind == "device_allocated" or ranks else min(draw.ranks, job.per_host)
    return Leak(kind=kind, ranks=ranks, speed=_left(job, kind) / leaking / (hours * 3600))


@drawn(12)
def leaking(draw: Draw) -> Case:
    """Memory of a kind grows on one rank or on all, and is used up within hours."""
    job, kind, all_of_them = _plain(draw), _KINDS[draw.random.integers(3)], draw.chance(0.5)
    ranks = None if all_of_them else draw.some(1)
    fault = _leaking(draw, job, kind, ranks, draw.between(2.5, 16))
    # Where most ranks leak the run is named.
    named = ranks if ranks is not None and not draw.pair else ()
    return Case(
        replace(job, faults=(fault,), horizon=job.start + _WATCHED),
        (Expectation("TrainingMemoryLeak", named, kind, job.start),),
        allowed=("TrainingMemoryHeadroom",),
        near=("TrainingMemoryFragmentation", "TrainingOutOfMemory"),
        facts={"growth": fault.speed * 900 / GIB},
    )


@drawn(12)
def not_leaking(draw: Draw) -> Case:
    """Memory comes and goes, fills a cache, or grows so slowly that it lasts for days."""
    job, kind = _plain(draw), draw.random.integers(3)
    assert job.usage is not None
    if kind == 0:
        job = replace(job, usage=replace(job.usage, swing=draw.between(3, 6) * GIB))
    elif kind == 1:
        job = replace(job, usage=replace(job.usage, cache=draw.between(2, 12) * GIB, half=draw.between(200, 900)))
    else:
        fault = _leaking(draw, job, _KINDS[draw.random.integers(3)], None, draw.between(32, 90))
        job = replace(job, faults=(fault,))
    return Case(replace(job, horizon=job.start + _WATCHED), near=("TrainingMemoryLeak",))


def _shortage(draw: Draw, *, real: bool) -> Case:
    """Return a case in which memory is short in up to three ways, or nearly."""
    job, begin = _plain(draw), draw.begin()
    usage = job.usage
    assert usage is not None
    faults: list[Fault] = []
    expected: list[Expectation] = []
    rank = int(draw.random.integers(draw.ranks))
    if not real or draw.chance(0.75):
        full = draw.between(0.962, 0.995) if real else draw.between(0.8, 0.92)
        faults.append(Memory(begin=begin, kind="device_peak", value=full * usage.device, rank=rank))
        expected.append(Expectation("TrainingMemoryHeadroom", (), "device", begin))
    if not real or draw.chance(0.75):
        part = draw.between(0.3, 0.55) if real else draw.between(0.1, 0.2)
        reserved = min(usage.allocated / (1 - part), usage.device)
        faults += [
            Memory(begin=begin, kind="device_reserved", value=reserved, rank=rank),
            Memory(begin=begin, kind="allocation_retries", value=draw.between(0.5, 10), rank=rank),
        ]
        expected.append(Expectation("TrainingMemoryFragmentation", begin=begin))
    if real and draw.chance(0.75):
        faults.append(Memory(begin=begin, kind="out_of_memory", value=draw.between(0.3, 3), rank=rank))
        expected.append(Expectation("TrainingOutOfMemory", begin=begin))
    job = replace(job, faults=tuple(faults), horizon=begin + 1800)
    near = tuple(
        {"TrainingMemoryHeadroom", "TrainingMemoryFragmentation", "TrainingOutOfMemory"}
        - {each.alert for each in expected}
    )
    return Case(
        job,
        tuple(expected) if real else (),
        near=near if real else ("TrainingMemoryHeadroom", "TrainingMemoryFragmentation", "TrainingOutOfMemory"),
    )


@drawn(22)
def memory_short(draw: Draw) -> Case:
    """The device is nearly full, in pieces, or allocations fail."""
    return _shortage(draw, real=True)


@drawn(11)
def memory_nearly_short(draw: Draw) -> Case:
    """The device is used well."""
    return _shortage(draw, real=False)
