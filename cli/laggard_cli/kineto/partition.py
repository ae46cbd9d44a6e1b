"""Divides the steps of a trace into phases that add up to the step.

Each moment of a step belongs to one phase:

1. while the device computes, to the phase in which the host launched the kernel;
2. else, while collective kernels run, to communication: the rank waits for its peers or for the transfer;
3. else, while the device copies from the host, to h2d; other copies to the phase that launched them;
4. else the device is idle, or there is none: to what the training thread is at. With a collective under way and no
   operator at work but one that waits for it, it waits, which is communication.

Forward lasts from the first operator behind the batch, the last update or the last backward pass to the beginning of
backward, so the loss is part of it; gradients that are set to zero in between are other. Where no backward follows, as
in an evaluation inside a step or of the first of several batches, it lasts from the first to the last operator between
two batches, if a module's are among them. Of a trace that has steps with backward and without, these are validation,
and are left out. Backward lasts as long as the autograd engine works, and as gradients are reduced.
What no mark of torch names is other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laggard.shared.phases import OWN_PHASES, Phase
from laggard_cli.errors import CommandError
from laggard_cli.kineto.bounds import bounds, launched, settled
from laggard_cli.kineto.kinds import DEVICE, Kind
from laggard_cli.kineto.trace import Events, Mask, Times, Trace

_States = NDArray[np.int8]
#: Phases of a trace. It has no marks for checkpoints and evaluation.
PHASES = (*sorted(OWN_PHASES), Phase.COMMUNICATION)
_COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_KERNELS = (Kind.KERNEL, Kind.MEMSET)
_MICROSECOND = 1e-6
#: Operators that modules call, and that what logs, measures or averages does not.
_OF_MODULES = re.compile(
    r"aten::(?:linear|conv(?:_transpose)?[123]d|embedding|scaled_dot_product_attention|lstm|gru|\w+_norm)$"
)
#: Nodes of autograd, functions and tensor classes of Python: they work in the operators that they call, and wait beside
#: these. What a compiler made calls none.
_FRAME = re.compile(r"(?!Compiled)\w+$|torch::autograd::")
#: A collective of the host that has one peer.
_TRANSFER = re.compile(r"\w+:(?:send|recv)\b")


@dataclass(frozen=True)
class DeviceTime:
    """Seconds of each step for which a device does something, one array element a step."""

    idle: Times
    #: Idle while the host is in forward, backward or the update: it does not launch as fast as the device computes.
    starved: Times
    #: In collectives: hidden behind compute, and not.
    collectives_hidden: Times
    collectives_exposed: Times
    #: In copies between host and device, in both directions, with no compute and no collective beside them.
    copies_exposed: Times


@dataclass(frozen=True)
class Steps:
    """The steps of one rank."""

    #: As the marks number them; empty where updates of the optimizer delimit steps.
    numbers: tuple[int, ...]
    #: Seconds, one a step.
    length: Times
    #: Seconds by phase, each one a step; they add up to the length.
    phases: dict[Phase, Times] = field(repr=False)
    device: DeviceTime | None = field(repr=False)
    #: Begin of the first and end of the last step, on the trace's clock.
    window: tuple[float, float]
    #: Whether any collective was seen, without which a rank cannot be said to wait.
    communicates: bool
    #: Whether it sends to a single peer or receives from one, as a stage of a pipeline does.
    sends: bool
    #: Whether there is a backward pass or an update: without them the steps are of evaluation or inference.
    trains: bool

    @property
    def own(self) -> Times:
        """Seconds of each step in which the rank works, or has work that its device waits for."""
        return self.length - self.phases[Phase.COMMUNICATION]

    def __len__(self) -> int:
        return len(self.length)


def partition(trace: Trace) -> Steps:
    """Return the steps of a trace by phase.

    Raises:
        CommandError: it has no marks of steps.
    """
    numbers, marked, ends = bounds(trace)
    passes = _passes(trace)
    numbers, marked, ends = _of_training_alone(numbers, marked, ends, passes)
    begins, ends = settled(trace, marked, ends) if trace.on_device else (marked, ends)
    if not np.all(ends > begins):
        raise CommandError(f"{trace.path}: a step in which nothing was launched; were its kernels recorded?")
    events = trace.events
    edges = np.unique(np.concatenate((events.begin, events.end, begins, ends)))
    timeline = _Timeline(
        edges, np.diff(edges) * _MICROSECOND, np.searchsorted(edges, begins), np.searchsorted(edges, ends)
    )
    host = _host_states(trace, timeline, marked)
    free = ~timeline.cover(_busy(trace)) | timeline.cover(events[(events.kind == Kind.WAIT) & _of_training(trace)])
    collectives = events.of(Kind.COLLECTIVE)
    waits = timeline.cover(collectives) & free
    idle_states = np.where(waits, np.int8(Phase.COMMUNICATION), host)
    states, device = _on_device(trace, timeline, host, idle_states) if trace.on_device else (idle_states, None)
    return Steps(
        numbers=numbers,
        length=(ends - begins) * _MICROSECOND,
        phases={phase: timeline.seconds(states == phase) for phase in PHASES},
        device=device,
        window=(float(marked[0]), float(ends[-1])),
        communicates=bool(len(events.of(Kind.COLLECTIVE, Kind.COLLECTIVE_KERNEL))),
        sends=any(_TRANSFER.match(trace.names[int(name)]) for name in np.unique(collectives.name)),
        trains=bool(passes) or bool(len(events.of(Kind.OPTIMIZER))),
    )


def _of_training_alone(
    numbers: tuple[int, ...], begins: Times, ends: Times, passes: list[tuple[float, float]]
) -> tuple[tuple[int, ...], Times, Times]:
    """Return the steps with a backward pass, where some have one: the others are of validation."""
    starts = np.array([begin for begin, _ in passes])
    trains = np.searchsorted(starts, ends) > np.searchsorted(starts, begins)
    if not trains.any():
        return numbers, begins, ends
    kept = tuple(number for number, training in zip(numbers, trains.tolist(), strict=False) if training)
    return kept, begins[trains], ends[trains]


@dataclass(frozen=True)
class _Timeline:
    """Time cut at every edge of an event. A mask or a state has an element for each piece."""

    edges: Times
    #: Seconds of each piece.
    widths: Times
    #: First piece of each step, and the one behind its last.
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    def cover(self, events: Events) -> Mask:
        """Return in which pieces any of the events goes on."""
        depth = np.zeros(len(self.edges), np.int64)
        for times, change in ((events.begin, 1), (events.end, -1)):
            depth += change * np.bincount(np.searchsorted(self.edges, times), minlength=len(depth))
        return np.cumsum(depth)[:-1] > 0

    def paint(self, states: _States, begin: float, end: float, phase: Phase) -> None:
        """Give the time between two edges to a phase."""
        low, high = np.searchsorted(self.edges, (begin, end))
        states[low:high] = phase

    def at(self, states: _States, times: Times) -> _States:
        """Return the states at some times."""
        piece = np.searchsorted(self.edges, times, side="right") - 1
        return states[np.minimum(np.maximum(piece, 0), len(states) - 1)]

    def seconds(self, mask: Mask) -> Times:
        """Return the seconds of each step for which a mask holds."""
        total = np.concatenate(([0.0], np.cumsum(self.widths * mask)))
        return total[self.last] - total[self.first]


def _busy(trace: Trace) -> Events:
    """Return the operators at work on the training thread and in the autograd engine, but the calls of collectives.

    A node of the engine works in an operator, and waits in a hook, such as FSDP's, or in a function of Python's.
    """
    events = trace.events
    frames = np.array([bool(_FRAME.match(name)) for name in trace.names], np.bool_)
    operators = (events.kind == Kind.OPERATOR) & _of_training(trace)
    return events[operators & ~frames[events.name]]


def _of_training(trace: Trace) -> Mask:
    """Return which events are on the training thread or, for a device, on the thread of its autograd engine."""
    engines = np.unique(trace.events.of(Kind.BACKWARD).thread)
    return np.isin(trace.events.thread, np.append(engines, trace.training))


def _host_states(trace: Trace, timeline: _Timeline, steps: Times) -> _States:
    """Return what the training thread is at in each piece."""
    events = trace.events
    states = np.full(len(timeline.widths), Phase.OTHER, np.int8)
    data, updates, zeroed = (events.of(kind) for kind in (Kind.DATA, Kind.OPTIMIZER, Kind.ZERO_GRAD))
    passes = _passes(trace)
    work = events[np.isin(events.kind, (Kind.OPERATOR, Kind.CALL, Kind.ANNOTATION)) & (events.thread == trace.training)]
    # What sets gradients to zero is not the first operator of forward.
    inside = np.searchsorted(zeroed.begin, work.begin, side="right") > np.searchsorted(
        zeroed.end, work.begin, side="right"
    )
    work = work[~inside]
    behind = np.sort(np.concatenate((steps, data.end, updates.end, [end for _, end in passes])))
    operators = work.of(Kind.OPERATOR)
    of_modules = np.array([not passes or bool(_OF_MODULES.match(name)) for name in trace.names])[operators.name]
    _paint_stretches(timeline, states, operators, of_modules, np.append(behind, data.begin))

    def paint(marks: Events, phase: Phase) -> None:
        for begin, end in zip(marks.begin.tolist(), marks.end.tolist(), strict=True):
            timeline.paint(states, begin, end, phase)

    # An update may call a closure with forward and backward in it, as Lightning's does.
    paint(updates, Phase.OPTIMIZER)
    for begin, end in passes:
        before = int(np.searchsorted(behind, begin, side="right")) - 1
        start = behind[before] if before >= 0 else -np.inf
        first = int(np.searchsorted(work.begin, start))
        if first < len(work) and work.begin[first] < begin:
            timeline.paint(states, float(work.begin[first]), begin, Phase.FORWARD)
        timeline.paint(states, begin, end, Phase.BACKWARD)
    paint(zeroed, Phase.OTHER)
    paint(data, Phase.DATA)
    return states


def _paint_stretches(timeline: _Timeline, states: _States, work: Events, of_modules: Mask, borders: Times) -> None:
    """Give forward the time from the first to the last operator between two borders, where any is of a module."""
    if not len(work):
        return
    part = np.searchsorted(np.sort(borders), work.begin, side="right")
    first = np.flatnonzero(np.append(True, np.diff(part) > 0))
    ends = np.maximum.reduceat(work.end, first)
    chosen = np.logical_or.reduceat(of_modules, first)
    for begin, end in zip(work.begin[first][chosen].tolist(), ends[chosen].tolist(), strict=True):
        timeline.paint(states, begin, end, Phase.FORWARD)


def _passes(trace: Trace) -> list[tuple[float, float]]:
    """Return start and end of each backward pass: what the engine does with no forward, batch or update between."""
    events = trace.events
    engine = events.of(Kind.BACKWARD)
    if not len(engine):
        return []
    reach = np.maximum.accumulate(engine.end)
    marks = events.of(Kind.DATA, Kind.OPTIMIZER, Kind.STEP)
    forward = events[events.recorded & (events.kind == Kind.OPERATOR) & (events.thread == trace.training)]
    breaks = np.sort(np.concatenate((marks.begin, forward.begin)))
    # A break inside the engine's own work is recomputation for a checkpoint of activations.
    between = np.searchsorted(breaks, engine.begin[1:]) > np.searchsorted(breaks, reach[:-1])
    starts = np.flatnonzero(np.append(True, between))
    stops = np.append(starts[1:] - 1, len(engine) - 1)
    return list(zip(engine.begin[starts].tolist(), reach[stops].tolist(), strict=True))


def _on_device(trace: Trace, timeline: _Timeline, host: _States, idle_states: _States) -> tuple[_States, DeviceTime]:
    """Return the phase of each piece, by the device first, and what the device does."""
    events = trace.events[np.isin(trace.events.kind, DEVICE)]
    phases = _launched_in(trace, timeline, host, events)
    compute = timeline.cover(events.of(*_KERNELS))
    collectives = timeline.cover(events.of(Kind.COLLECTIVE_KERNEL))
    copies_in = timeline.cover(events.of(Kind.COPY_IN))
    copies = timeline.cover(events.of(Kind.COPY))
    states = np.array(idle_states)

    def give(*kinds: Kind) -> None:
        for phase in PHASES:
            states[timeline.cover(events[np.isin(events.kind, kinds) & (phases == phase)])] = phase

    # From the least to the most important: what is given last stays.
    give(Kind.COPY)
    states[copies_in] = Phase.H2D
    states[collectives] = Phase.COMMUNICATION
    give(*_KERNELS)
    idle = ~(compute | collectives | copies_in | copies)
    return states, DeviceTime(
        idle=timeline.seconds(idle),
        starved=timeline.seconds(idle & np.isin(idle_states, _COMPUTE)),
        collectives_hidden=timeline.seconds(collectives & compute),
        collectives_exposed=timeline.seconds(collectives & ~compute),
        copies_exposed=timeline.seconds((copies_in | copies) & ~compute & ~collectives),
    )


def _launched_in(trace: Trace, timeline: _Timeline, host: _States, events: Events) -> _States:
    """Return for each event of a device in which phase the host launched it."""
    return timeline.at(host, launched(trace, events))
