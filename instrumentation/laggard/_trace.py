"""The last steps on request: as JSON lines, or as a trace for Chrome's viewer and Perfetto.

A request comes from :func:`laggard.dump_trace`, from the signal in ``LAGGARD_TRACE_SIGNAL`` or from a control file. The
drain thread writes the file, under another name until it is whole.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laggard._clocks import unix_ahead_ns
from laggard._identity import Identity
from laggard._part import Host, Part
from laggard._spans import collectives_of
from laggard._steps import Step
from laggard.shared import control, environment
from laggard.shared.metrics import RECENT_STEPS
from laggard.shared.phases import Phase

if TYPE_CHECKING:
    from laggard._report import Report

_logger = logging.getLogger(__name__)

#: Intervals of all kept steps together, about 6 MB; gradient accumulation can have thousands in one step.
_MAX_INTERVALS = 32768

Answer = Callable[[str], None]
"""Takes what became of a request: an empty string, or in one line why it failed."""


class TraceDump(Part):
    """Keeps the last steps and writes them when it is asked to."""

    name = "trace"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._steps: deque[Step] = deque(maxlen=RECENT_STEPS)
        self._intervals = 0
        self._requests: deque[tuple[str, Answer]] = deque(maxlen=16)
        self._signal = 0

    def steps(self) -> list[Step]:
        """Return the last steps. On any thread."""
        # One call of C's, in which the drain thread adds none.
        return list(self._steps)

    def request(self, path: str = "", answer: Answer | None = None) -> None:
        """Have the last steps written, to a file in the state folder unless ``path`` names another. On any thread."""
        self._requests.append((path, answer or _say_failure))

    def training_began(self) -> None:
        """Take the signal that asks for a trace, if one is named."""
        name = environment.text(environment.LAGGARD_TRACE_SIGNAL)
        if not name:
            return
        number = _signal_number(name)
        if number is None:
            reason = "no such signal"
        elif self.host.hear(number):
            self._signal = number
            return
        else:
            reason = "the process has a handler of its own"
        _logger.warning("%s=%s is not used: %s", environment.LAGGARD_TRACE_SIGNAL, name, reason)

    def woken(self, signals: bytes) -> None:
        """Take the signal."""
        if self._signal and self._signal in signals:
            self.request()

    def steps_ended(self, steps: list[Step]) -> None:
        """Keep the newest steps."""
        kept = self._steps
        for step in steps[-RECENT_STEPS:]:
            if len(kept) == kept.maxlen:
                self._intervals -= len(kept.popleft().intervals)
            kept.append(step)
            self._intervals += len(step.intervals)
            while self._intervals > _MAX_INTERVALS and len(kept) > 1:
                self._intervals -= len(kept.popleft().intervals)

    def report(self, report: Report) -> None:
        """Write what was asked for."""
        while self._requests:
            path, answer = self._requests.popleft()
            try:
                self._write(report.identity, path, report.memory_peak)
            except (OSError, ValueError) as error:
                answer(f"trace of the last steps: {error}")
            else:
                answer("")

    def forked(self) -> None:
        """Forget the parent's steps."""
        self._steps.clear()
        self._requests.clear()
        self._intervals = 0

    def _write(self, identity: Identity, name: str, memory: Mapping[str, int]) -> None:
        path = Path(name) if name else default_path(identity, "trace")
        steps = list(self._steps)
        if path.suffix == ".jsonl":
            lines: Iterable[str] = (json.dumps(line) + "\n" for line in json_lines(identity, steps, memory))
        else:
            lines = [json.dumps(chrome_trace(identity, steps, self.host.slow_collectives), separators=(",", ":"))]
        control.write_atomically(path, lines)
        _logger.info("the last %d steps are in %s", len(steps), path)


def default_path(identity: Identity, kind: str) -> Path:
    """Return where a trace goes that nobody gave a path for."""
    name = f"{control.stem(identity.run, identity.rank)}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.{kind}.json"
    return environment.state_directory() / name


def json_lines(
    identity: Identity, steps: Sequence[Step], memory: Mapping[str, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Return one object for each step. Times are nanoseconds, those of the intervals since the step's start.

    What the rank used most of each kind of memory, until now, stands in the newest.
    """
    offset = unix_ahead_ns()
    for step in steps:
        yield {
            "run": identity.run,
            "rank": identity.rank,
            "world_size": identity.world_size,
            **({"peer_group": identity.peer_group} if identity.peer_group else {}),
            "step": step.number,
            "started_unix_ns": step.started + offset,
            "duration_ns": step.duration,
            "excluded": step.excluded,
            "phases_ns": {phase.label: step.phases[phase] for phase in Phase if step.phases[phase]},
            "intervals": [
                [phase.label, started - step.started, ended - started] for phase, started, ended in step.intervals
            ],
            **({"memory_peak_bytes": dict(memory)} if memory and step is steps[-1] else {}),
        }


def chrome_trace(identity: Identity, steps: Iterable[Step], collectives: deque[tuple[str, int, int]]) -> dict[str, Any]:
    """Return the steps in the trace event format: one row for the rank, the phases and slow collectives inside steps.

    Times are whole microseconds since 1970, so that the files of several ranks can be put together.
    """
    offset = unix_ahead_ns()
    rank = identity.rank

    def complete(name: str, started: int, ended: int, **arguments: Any) -> dict[str, Any]:
        # Both ends are rounded alike, so that what touches keeps touching and what nests keeps nesting.
        begin, end = (started + offset) // 1000, (ended + offset) // 1000
        event = {"ph": "X", "name": name, "cat": "laggard", "pid": rank, "tid": 0, "ts": begin, "dur": end - begin}
        return {**event, "args": arguments} if arguments else event

    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "training"}},
    ]
    for step in steps:
        arguments: dict[str, Any] = {"step": step.number}
        if step.excluded:
            arguments["excluded"] = step.excluded
        events.append(complete("step", step.started, step.ended, **arguments))
        events += [complete(phase.label, started, ended) for phase, started, ended in step.intervals]
        events += [complete(operation, *times) for operation, *times in collectives_of(step, collectives)]
    facts = {"run": identity.run, "host": identity.host, "workload": identity.workload}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _signal_number(name: str) -> signal.Signals | int | None:
    """Return the number of a signal given as ``SIGUSR2``, ``USR2``, ``SIGRTMIN+1`` or ``35``."""
    if name.isdecimal():
        return int(name) if int(name) in signal.valid_signals() else None
    base, _, more = name.upper().removeprefix("SIG").partition("+")
    number = getattr(signal, f"SIG{base}", None)
    if not isinstance(number, int) or (more and not more.isdecimal()):
        return None
    number += int(more or 0)
    return number if number in signal.valid_signals() else None


def _say_failure(reason: str) -> None:
    if reason:
        _logger.warning("%s", reason)
