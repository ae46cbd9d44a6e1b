"""What of that which agents accepted can be asked for in the end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lab.scale.prometheus import Server
from lab.scale.push import Tally

#: Until all has arrived, at most; and between two looks. Seconds.
_LONGEST, _LOOK = 120.0, 2.0
#: What every rank pushes every time: a counter, a histogram and a gauge, which are compared sample by sample.
_PROBES = ("training_steps_total", "training_step_duration_seconds_count", "training_ranks_expected")
_PUSHED = '{job="training"}'


@dataclass(frozen=True)
class Lost:
    """What is not there."""

    #: Samples of all metrics, by their number; of a few metrics by their times.
    samples: int
    times: int


def wait_and_count(tally: Tally, server: Server, began: float) -> Lost:
    """Wait until what was accepted since a time has arrived, but not for ever; return what has not.

    A request without an answer may have arrived too. Then samples count less as lost than are, but their times do not.
    """
    deadline = time.time() + _LONGEST
    while _times(tally, server, began, _PROBES[:1]) and time.time() < deadline:
        time.sleep(_LOOK)
    return Lost(_samples(tally, server, began), _times(tally, server, began, _PROBES))


def _times(tally: Tally, server: Server, began: float, names: tuple[str, ...]) -> int:
    lost = 0
    for name in names:
        found = server.times(f"{name}{_PUSHED}", _since(began))
        lost += sum(len(set(times) - found.get(who, set())) for who, times in tally.times.items())
    return lost


def _samples(tally: Tally, server: Server, began: float) -> int:
    lost = 0
    for name, count in tally.samples.items():
        there = server.value(f"sum(count_over_time({name}{_PUSHED}[{_since(began):.0f}s])) or vector(0)")
        lost += max(0, count - round(there))
    return lost


def _since(began: float) -> float:
    return time.time() - began + 60
