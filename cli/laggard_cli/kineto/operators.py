"""What each operator, kernel and function of Python costs in itself, without what it calls."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from laggard_cli.kineto.kinds import DEVICE, Kind
from laggard_cli.kineto.partition import Steps
from laggard_cli.kineto.trace import Events, Times, Trace

_HOST = (
    Kind.OPERATOR,
    Kind.ANNOTATION,
    Kind.DATA,
    Kind.OPTIMIZER,
    Kind.ZERO_GRAD,
    Kind.BACKWARD,
    Kind.CALL,
)


@dataclass(frozen=True)
class Costs:
    """Seconds a step by name."""

    #: On the host, of the operator or range itself.
    host: dict[str, float]
    #: Of the device, of kernels and copies.
    device: dict[str, float]
    #: On the training thread, of functions of Python; empty where no stacks were recorded.
    code: dict[str, float]


def costs(trace: Trace, steps: Steps) -> Costs:
    """Return what names cost in the mean step."""
    begin, end = steps.window
    inside = trace.events[(trace.events.begin >= begin) & (trace.events.begin < end)]
    host, device = inside.of(*_HOST), inside.of(*DEVICE)
    code = _code(trace, begin, end)
    own, functions = _own(code), code.kind == Kind.FUNCTION
    return Costs(
        _by_name(trace, host, _own(host), len(steps)),
        _by_name(trace, device, device.end - device.begin, len(steps)),
        _by_name(trace, code[functions], own[functions], len(steps)),
    )


def _code(trace: Trace, begin: float, end: float) -> Events:
    """Return functions and operators on the training thread, cut to the steps: a training loop is longer than those.

    With operators, for what they take is not the function's that calls them.
    """
    events = trace.events.of(*_HOST, Kind.FUNCTION)
    events = events[(events.thread == trace.training) & (events.end > begin) & (events.begin < end)]
    return replace(events, begin=np.maximum(events.begin, begin), end=np.minimum(events.end, end))


def _by_name(trace: Trace, events: Events, lengths: Times, steps: int) -> dict[str, float]:
    sums = np.bincount(events.name, weights=lengths, minlength=len(trace.names)) / steps / 1e6
    return {trace.names[index]: float(sums[index]) for index in np.flatnonzero(sums)}


def _own(events: Events) -> Times:
    """Return the microseconds of each event in which none that it encloses on its thread goes on."""
    own = events.end - events.begin
    ends = events.end.tolist()
    lengths = own.tolist()
    open_by_thread: dict[int, list[int]] = {}
    for index, (begin, thread) in enumerate(zip(events.begin.tolist(), events.thread.tolist(), strict=True)):
        enclosing = open_by_thread.setdefault(thread, [])
        while enclosing and ends[enclosing[-1]] <= begin:
            enclosing.pop()
        if enclosing:
            own[enclosing[-1]] -= lengths[index]
        enclosing.append(index)
    return np.maximum(own, 0.0)
