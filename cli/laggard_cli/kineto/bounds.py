"""Where the steps of a trace begin and end."""

from __future__ import annotations

import numpy as np

from laggard_cli.errors import CommandError
from laggard_cli.kineto.kinds import DEVICE, STEP, Kind
from laggard_cli.kineto.trace import OWN_NAME, Events, Times, Trace

#: Microseconds by which the end of a mark may be beyond the begin of the next.
_ROUNDING = 1.0


def bounds(trace: Trace) -> tuple[tuple[int, ...], Times, Times]:
    """Return numbers, starts and ends of the steps as the host marks them.

    Raises:
        CommandError: it marks none.
    """
    events = trace.events[trace.events.thread == trace.training]
    marks = events.of(Kind.STEP)
    marks = _apart(marks[marks.end > marks.begin])
    if len(marks):
        numbers = tuple(int(name) if name.isdecimal() else -1 for name in _suffixes(trace, marks))
        return numbers, marks.begin, marks.end
    ends = events.of(Kind.OPTIMIZER).end
    data = events.of(Kind.DATA).begin
    if len(ends) and len(data):
        # Several optimizers between two batches are one step.
        batch = np.searchsorted(data, ends)
        ends = ends[np.append(np.diff(batch) > 0, True)]
    if OWN_NAME.fullmatch(trace.path.name):
        # laggard begins to profile where a step ends.
        ends = np.append(events.begin[:1], ends)
    ends = np.unique(ends)
    if len(ends) < 2:  # noqa: PLR2004 - a step lies between two updates
        raise CommandError(
            f"{trace.path}: no steps: neither a {STEP} mark (call step() of the profiler in the loop) nor two updates "
            "of an optimizer"
        )
    return (), ends[:-1], ends[1:]


def _apart(marks: Events) -> Events:
    """Return as many marks as do not intersect: two profilers may mark each step, and one the whole recording."""
    kept: list[int] = []
    reached = -np.inf
    for place in np.argsort(marks.end, kind="stable").tolist():
        if marks.begin[place] >= reached - _ROUNDING:
            kept.append(place)
            reached = float(marks.end[place])
    return marks[kept]


def settled(trace: Trace, begins: Times, ends: Times) -> tuple[Times, Times]:
    """Return the bounds of steps where the device too is done with what was launched before them.

    A host that does not wait for its device runs ahead of it, so that its marks stand in the midst of earlier steps.
    """
    events = trace.events.of(*DEVICE)
    times_launched = launched(trace, events)
    order = np.argsort(times_launched, kind="stable")
    done = np.concatenate(([-np.inf], np.maximum.accumulate(events.end[order])))

    def moved(times: Times) -> Times:
        return np.maximum(times, done[np.searchsorted(times_launched[order], times)])

    settled_begins = moved(begins)
    if len(begins) > 1 and settled_begins[1] > begins[1]:
        # What the device still did when the trace began was not recorded, and is no idleness.
        settled_begins[0] = max(settled_begins[0], float(events.begin[0]))
    return settled_begins, moved(ends)


def _suffixes(trace: Trace, events: Events) -> list[str]:
    return [trace.names[int(name)].partition("#")[2] for name in events.name]


def launched(trace: Trace, events: Events) -> Times:
    """Return when the host launched each event of a device; its own begin where that is unknown."""
    launches = trace.events.of(Kind.LAUNCH)
    if not len(launches):
        return events.begin
    launches = launches[np.argsort(launches.correlation, kind="stable")]
    place = np.minimum(np.searchsorted(launches.correlation, events.correlation), len(launches) - 1)
    known = (launches.correlation[place] == events.correlation) & (events.correlation >= 0)
    return np.where(known, launches.begin[place], events.begin)
