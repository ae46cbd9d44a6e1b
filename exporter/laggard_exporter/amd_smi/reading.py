"""What one GPU of AMD answers, as samples: the table's, and the seconds for which its clocks were held down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from laggard_exporter.amd_smi import table
from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus.reading import Answers, TableReader
from laggard_exporter.gpus.readings import Call
from laggard_exporter.samples import Sample

_NANOSECONDS = 1e9


class Reader(TableReader):
    """Makes samples of what GPUs answer: of the table, and of what holds the clocks down."""

    def __init__(self) -> None:
        super().__init__(table.READINGS)
        self._residencies: dict[str, _Residency] = {}

    def read(self, uuid: str, answers: Answers) -> list[Sample]:
        """Return what the GPU says, in base units; what it does not know is left out."""
        return [*super().read(uuid, answers), *self._clock_events(uuid, answers.get(Call(table.METRICS)) or {})]

    def _clock_events(self, uuid: str, metrics: Mapping[str, Any]) -> Iterator[Sample]:
        residency = self._residencies.setdefault(uuid, _Residency())
        seconds = residency.add(metrics)
        for reason, value in seconds.items():
            yield Sample(names.GPU_CLOCK_EVENT_SECONDS, (uuid, reason), value)
        status = metrics.get(table.THROTTLE_FIELD)
        if status is None:
            return
        for reason, bits in table.THROTTLE_BITS.items():
            if reason not in seconds:
                yield Sample(names.GPU_CLOCK_EVENT_ACTIVE, (uuid, reason), bool(status & bits))


class _Residency:
    """The seconds for which reasons held a GPU's clocks down, since the first reading.

    The firmware adds to an accumulator each time that it finds the clocks held down, and counts how often it looked:
    the share of both over the time between two readings is the share of that time.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def add(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the seconds by reason, of those that the GPU accumulates."""
        last, self._last = self._last, {name: value for name, value in metrics.items() if isinstance(value, int)}
        known: dict[str, float] = {}
        looked, clock = (_grown(last, self._last, name) for name in table.WINDOW)
        for reason, fields in table.RESIDENCIES.items():
            if any(name not in self._last for name in (*table.WINDOW, *fields)):
                continue
            shares = [_grown(last, self._last, name) for name in fields]
            # Two reasons of heat may hold at the same time, so the greatest is the least that it was.
            if looked and clock and None not in shares:
                share = min(1.0, max(share or 0 for share in shares) / looked)
                self._seconds[reason] = self._seconds.get(reason, 0.0) + share * clock / _NANOSECONDS
            known[reason] = self._seconds.get(reason, 0.0)
        return known


def _grown(last: Mapping[str, int], now: Mapping[str, int], name: str) -> int | None:
    """Return by how much a counter grew, None for one that was reset or not read before."""
    if name not in last or name not in now or now[name] < last[name]:
        return None
    return now[name] - last[name]
