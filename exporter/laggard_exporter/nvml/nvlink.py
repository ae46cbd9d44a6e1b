"""The NVLinks of a GPU: which fields its generation answers, and their sums over the links.

Each generation counts errors in fields of its own: Ampere in totals that stand in the table, Hopper in the fields 161
to 163, Blackwell in 206 to 221, each per link. Which of them a GPU has is asked once; a counter is exported while
every one of its links answers, because a sum over some of them would look like a reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus.child_process import Request
from laggard_exporter.gpus.readings import Reading
from laggard_exporter.nvml.library import FIELD_VALUES, FieldValues, Nvml

STATE_FUNCTION = "nvmlDeviceGetNvLinkState"

_STATE = 165
# Sleep is an active link that saves power (nvml.h, NVML_NVLINK_STATE_*).
_ACTIVE_STATES = {1, 2}

_ERRORS = {
    161: "replay",
    162: "recovery",
    163: "crc",
    206: "malformed_packet",
    207: "buffer_overrun",
    208: "receive",
    209: "receive_remote",
    210: "receive_general",
    211: "local_link_integrity",
    212: "transmit_discard",
    213: "link_recovery_successful",
    214: "link_recovery_failed",
    219: "effective",
    221: "symbol",
}

_TRANSMIT, _RECEIVE = 202, 204

_MOST = (1 << 62) - 1
_FAMILIES = {_RECEIVE: names.GPU_NVLINK_RECEIVE, _TRANSMIT: names.GPU_NVLINK_TRANSMIT}
#: Counters that are summed over the links.
COUNTERS: dict[int, Reading[int]] = {
    **{n: Reading(names.GPU_NVLINK_ERRORS, (n,), (1, 1), _MOST, (error,)) for n, error in _ERRORS.items()},
    **{n: Reading(family, (n,), (1, 1), _MOST) for n, family in _FAMILIES.items()},
}

#: The total of all links in the table; where a GPU has it, the same per link is not asked for.
_TOTALS = (138, 0xFFFFFFFF)


class _Fields(NamedTuple):
    wanted: list[tuple[int, int]]

    def on(self, index: int) -> Request:
        return Request(FIELD_VALUES, index, (self.wanted,))


LINK_COUNT = _Fields([(91, 0)])


@dataclass
class Links:
    """The links of one GPU: how many, and the fields ``(number, link)`` that answer, those of a number together."""

    count: int = 0
    fields: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def __post_init__(self) -> None:
        #: The places of each number's values.
        self._places: dict[int, slice] = {}
        for number, group in groupby(enumerate(self.fields), lambda item: item[1][0]):
            places = [place for place, _ in group]
            self._places[number] = slice(places[0], places[-1] + 1)

    @classmethod
    def probe(cls, nvml: Nvml, index: int, count_answer: FieldValues | None, seconds: float | None) -> Links:
        """Ask the GPU which fields it has for its links."""
        count = int(nvml.fields(count_answer, LINK_COUNT.wanted)[0] or 0) if count_answer else 0
        if not count:
            return cls()
        numbers = (_STATE, *COUNTERS)
        wanted = [_TOTALS, *((number, link) for number in numbers for link in range(count))]
        values, _, codes = nvml.query(_Fields(wanted).on(index), seconds) or ((), (), ())
        fields = [field for field, code in zip(wanted, codes or (0,) * len(values), strict=False) if not code]
        if _TOTALS in fields:
            fields = [field for field in fields if field[0] not in {_TRANSMIT, _RECEIVE}]
        return cls(count, [field for field in fields if field != _TOTALS])

    def requests(self, index: int) -> list[Request]:
        """Return the calls that fields do not replace on this driver."""
        if not self.count or any(number == _STATE for number, _ in self.fields):
            return []
        return [Request(STATE_FUNCTION, index, (link,)) for link in range(self.count)]

    def counters(self, values: Sequence[float | None]) -> Iterator[tuple[Reading[int], list[float]]]:
        """Yield the values of all links, of each counter that is complete."""
        for number, places in self._places.items():
            found = [value for value in values[places] if value is not None]
            if number in COUNTERS and len(found) == places.stop - places.start:
                yield COUNTERS[number], found

    def states(self, values: Sequence[float | None], answers: list[Any]) -> dict[str, int]:
        """Return how many links are active and inactive; nothing where a link does not tell."""
        found: list[float | None] = [*answers, *values[self._places.get(_STATE, slice(0))]]
        states = [state for state in found if state is not None]
        if not self.count or len(states) != self.count:
            return {}
        active = sum(state in _ACTIVE_STATES for state in states)
        return {"active": active, "inactive": self.count - active}
