"""What one GPU is asked in a scrape, all of it at once, and its raw answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from laggard_exporter.nvml import nvlink, table
from laggard_exporter.nvml.devices import Device
from laggard_exporter.nvml.library import FIELD_VALUES, Nvml
from laggard_exporter.nvml.table import CLOCK_EVENTS, READINGS, Call, Field, Metric, Source, part
from laggard_exporter.nvml.worker import Request

ALL_READINGS = (*READINGS, CLOCK_EVENTS)
_SOURCES = tuple(source for reading in ALL_READINGS for source in reading.sources)
_FIELDS = tuple(dict.fromkeys(source for source in _SOURCES if isinstance(source, Field)))
# What every GPU is asked for; other calls only where they stand in for a source that the GPU does not have.
_FIRST_CALLS = tuple(
    dict.fromkeys(
        (
            *(first.whole for reading in ALL_READINGS if isinstance(first := reading.sources[0], Call)),
            table.SUPPORTED_CLOCK_EVENTS,
            table.FABRIC,
        )
    )
)

_WHOLE = {
    source: source.whole
    for source in (*_SOURCES, table.SUPPORTED_CLOCK_EVENTS, table.FABRIC)
    if isinstance(source, Call)
}

#: The place of each source's raw value in a list: a scrape reads a thousand of them.
PLACES = {source: place for place, source in enumerate(dict.fromkeys(_SOURCES))}
_METRIC_PLACES = tuple((source.number, place) for source, place in PLACES.items() if isinstance(source, Metric))
_PARTS: tuple[list[tuple[int, str | int | None]], ...] = tuple(
    [(place, source.attribute) for source, place in PLACES.items() if isinstance(source, Call) and source.whole == call]
    for call in _FIRST_CALLS
)

_UNSIGNED_INT = 1
"""NVML's type of a field that counts in 32 bits."""

#: The functions of nvidia-ml-py that a GPU is read with.
FUNCTIONS = (
    *dict.fromkeys(
        (
            FIELD_VALUES,
            table.GPM,
            table.FAN,
            nvlink.STATE_FUNCTION,
            *(call.function for call in _FIRST_CALLS),
            *(source.function for source in _SOURCES if isinstance(source, Call)),
        )
    ),
)


class Answers:
    """What one GPU answers in one scrape; several readings share one call. Construction asks, without waiting.

    All calls go to the other process together: each way there costs more than most calls.
    """

    def __init__(self, nvml: Nvml, device: Device, index: int, driver_release: int, further: Sequence[Request]) -> None:
        self._nvml = nvml
        self._device = device
        self.index = index
        table_fields, self._places = _fields_of(driver_release)
        self._link_fields = device.links.fields
        self._wanted = [*table_fields, *self._link_fields]
        self._first_calls = (*_FIRST_CALLS, *device.substitutes)
        fans = [Request(table.FAN, index, (fan,)) for fan in range(device.fans)]
        links = device.links.requests(index)
        self._counts = (len(self._first_calls), len(fans), len(links))
        self._question = nvml.send(
            [
                Request(FIELD_VALUES, index, (self._wanted,)),
                Request(table.GPM, index, (table.GPM_NUMBERS, None)),
                *(call.on(index) for call in self._first_calls),
                *fans,
                *links,
                *further,
            ]
        )
        #: By :data:`PLACES`.
        self.raws: list[float | None] = [None] * len(PLACES)
        #: By number and link.
        self.fields: dict[tuple[int, int], float | None] = {}
        self.fans: list[int | None] = []
        self.links: list[Any] = []
        self.further: list[Any] = []
        #: Seconds of the performance monitor's window, 0 where a first one begins, None without a monitor.
        self.window: float | None = None
        self.is_new_window = False
        self._calls: dict[Call, Any] = {}
        self._activity: dict[int, float] = {}
        self._types: dict[int, int] = {}

    def receive(self) -> None:
        """Wait for the answers. Raises as :meth:`laggard_exporter.nvml.library.Nvml.queries`."""
        fields, activity, *answers = self._nvml.receive(self._question)
        calls, fans, links = self._counts
        self._take_calls(answers[:calls])
        answers = answers[calls:]
        self.fans, self.links, self.further = answers[:fans], answers[fans : fans + links], answers[fans + links :]
        if activity is not None:
            self.window, self._activity, self.is_new_window = activity
            for number, place in _METRIC_PLACES:
                self.raws[place] = self._activity.get(number)
        if fields is not None:
            self._take_fields(fields)

    def _take_calls(self, answers: list[Any]) -> None:
        self._calls = dict(zip(self._first_calls, answers, strict=True))
        for parts, answer in zip(_PARTS, answers, strict=False):
            if answer is not None:
                for place, attribute in parts:
                    self.raws[place] = answer if attribute is None else answer[attribute]

    def _take_fields(self, answers: list[tuple[int, int, Any]]) -> None:
        values = self._nvml.fields(answers, [number for number, _ in self._wanted])
        self.fields = dict(zip(self._link_fields, values[len(self._places) :], strict=True))
        for place, value, answer in zip(self._places, values, answers, strict=False):
            self.raws[place], self._types[place] = value, answer[1]

    def call(self, source: Call) -> Any:
        """Return what a call answers, or the part of it that the source names."""
        whole = _WHOLE[source]
        if whole not in self._calls:
            # From now on it is asked together with the others.
            self._device.substitutes.add(whole)
            self._calls[whole] = self._nvml.query(whole.on(self.index))
        return part(self._calls[whole], source)

    def raw(self, source: Source) -> float | None:
        """Return the raw value of a source, None where there is none."""
        return self.call(source) if isinstance(source, Call) else self.raws[PLACES[source]]

    def is_word(self, source: Field) -> bool:
        """Return whether a field that has a value counts in 32 bits."""
        return self._types[PLACES[source]] == _UNSIGNED_INT

    def rate(self, metric: int) -> float | None:
        """Return a metric of the performance monitor."""
        return self._activity.get(metric)


@cache
def _fields_of(driver_release: int) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Return numbers and scopes of the fields that a driver of this release has, and the places of their values."""
    known = [field for field in _FIELDS if field.since <= driver_release < field.until]
    return tuple((field.number, field.scope) for field in known), tuple(PLACES[field] for field in known)
