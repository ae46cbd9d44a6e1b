"""What ranks say of their memory."""

from __future__ import annotations

import numpy as np

from lab.evaluation.model.blocks import Array
from lab.evaluation.model.faults import Leak, Memory
from lab.evaluation.model.job import Job, Usage
from lab.evaluation.model.rows import Rows, add

_SIZES = {
    "device_allocated": "allocated",
    "device_reserved": "reserved",
    "device_peak": "peak",
    "host_rss": "rss",
    "worker_rss": "workers",
}
_COUNTERS = ("allocation_retries", "out_of_memory")
#: By how much allocated memory differs from one moment to the next, as a share.
_RIPPLE = 0.02


def memory_rows(job: Job, ranks: int, start: float, time: float, random: np.random.Generator) -> Rows:
    """Return the memory of each rank at a time, of a process that started at another."""
    rows: Rows = {}
    usage = job.usage
    if usage is None:
        return rows
    known = {kind: _size(job, usage, kind, start, time, chance=random.random(ranks)) for kind in _SIZES}
    known["device_reserved"] = np.maximum(known["device_reserved"], known["device_allocated"])
    known["device_peak"] = np.maximum(known["device_peak"], known["device_allocated"])
    for kind, value in known.items():
        add(rows, ranks, "training_memory_usage_bytes", value, training_memory_kind=kind)
    add(rows, ranks, "training_memory_limit_bytes", usage.device, training_memory_kind="device")
    add(rows, ranks, "training_memory_limit_bytes", usage.host, training_memory_kind="host")
    for name in _COUNTERS:
        count = np.zeros(ranks)
        for fault in job.of(Memory):
            if fault.kind == name and time >= fault.begin >= start:
                count[fault.rank] += fault.times(time, fault.value)
        add(rows, ranks, f"training_memory_{name}_total", count)
    return rows


def _size(job: Job, usage: Usage, kind: str, start: float, time: float, *, chance: Array) -> Array:
    """Return how much of a kind of memory each rank has."""
    age = time - start
    value = np.full(len(chance), float(getattr(usage, _SIZES[kind])))
    if kind in ("host_rss", "worker_rss"):
        value += usage.swing * (age % usage.period) / usage.period
        value += usage.cache * (1 - 0.5 ** (age / usage.half))
    if kind == "device_allocated":
        value *= 1 + _RIPPLE * chance
    for leak in job.of(Leak):
        if leak.kind == kind and time >= leak.begin:
            chosen = list(leak.ranks) if leak.ranks is not None else slice(None)
            value[chosen] += leak.speed * (min(time, leak.end) - max(leak.begin, start))
    for fault in job.of(Memory):
        if fault.kind == kind and fault.at(time):
            value[fault.rank] = fault.value
    return value
