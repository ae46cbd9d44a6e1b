"""Walks the table over one GPU and rejects what can not be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from laggard_exporter import gpu_conventions as names
from laggard_exporter.nvml import nvlink, table
from laggard_exporter.nvml.counters import Counters
from laggard_exporter.nvml.devices import Device
from laggard_exporter.nvml.library import FIELD_VALUES, Nvml
from laggard_exporter.nvml.table import CLOCK_EVENTS, READINGS, Call, Field, Metric, Reading, Source, part
from laggard_exporter.nvml.worker import Request
from laggard_exporter.samples import Family, Sample

_ALL_READINGS = (*READINGS, CLOCK_EVENTS)
_SOURCES = tuple(source for reading in _ALL_READINGS for source in reading.sources)
_FIELDS = tuple(dict.fromkeys(source for source in _SOURCES if isinstance(source, Field)))
# What every GPU is asked for; other calls only where they stand in for a source that the GPU does not have.
_FIRST_CALLS = tuple(
    dict.fromkeys(
        (
            *(first.whole for reading in _ALL_READINGS if isinstance(first := reading.sources[0], Call)),
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

# The place of each source's raw value in a list: a scrape reads a thousand of them.
_PLACES = {source: place for place, source in enumerate(dict.fromkeys(_SOURCES))}
_FIRST_PLACES = tuple((reading, _PLACES[reading.sources[0]]) for reading in READINGS)
_METRIC_PLACES = tuple((source.number, place) for source, place in _PLACES.items() if isinstance(source, Metric))
_PARTS: tuple[list[tuple[int, str | int | None]], ...] = tuple(
    [
        (place, source.attribute)
        for source, place in _PLACES.items()
        if isinstance(source, Call) and source.whole == call
    ]
    for call in _FIRST_CALLS
)

_MIB = 1 << 20
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

#: The families whose values are checked.
CHECKED = tuple(
    dict.fromkeys(
        (
            *(reading.family for reading in _ALL_READINGS),
            names.GPU_FAN_SPEED,
            names.GPU_WORKLOAD_SM_UTILIZATION,
            *table.MIG_ACTIVITY,
        )
    )
)


class Reader:
    """Reads GPUs through ``nvml``; ``rejected`` counts impossible values by metric."""

    def __init__(self, nvml: Nvml) -> None:
        self.rejected = Counter({family.name: 0 for family in CHECKED})
        self._nvml = nvml
        self._counters = Counters()

    def read(
        self, device: Device, index: int, driver_release: int, further: Sequence[Request]
    ) -> tuple[list[Sample], list[Any]]:
        """Return what the GPU says, in base units, and the answers to further requests.

        What the GPU does not know is left out. All calls go to the other process together: each way there costs
        more than most calls.

        Raises as :meth:`laggard_exporter.nvml.library.Nvml.queries`.
        """
        answers = _Answers(self._nvml, device, index, driver_release, further)
        samples = [
            *self._table(device, answers),
            *self._clock_events(device.uuid, answers),
            *self._fabric(device.uuid, answers.call(table.FABRIC)),
            *self._fans(device.uuid, answers.fans),
            *self._links(device, answers),
        ]
        return samples, answers.further

    def ratio(self, family: Family, percent: float) -> float | None:
        """Return the share that NVML gives in per cent, None where it can not be true."""
        if 0 <= percent <= 100:  # noqa: PLR2004 - per cent; a NaN is no number between
            return percent / 100
        self.rejected[family.name] += 1
        return None

    def _table(self, device: Device, answers: _Answers) -> Iterator[Sample]:
        raws = answers.raws
        for (reading, place), labels in zip(_FIRST_PLACES, device.labels, strict=True):
            raw, source = raws[place], reading.sources[0]
            if raw is None or not reading.minimum <= raw <= reading.maximum:
                found = self._checked(reading, answers)
                if found is None:
                    continue
                source, raw = found
            if reading.states:
                state = reading.states[min(int(raw), len(reading.states) - 1)]
                for name in dict.fromkeys(reading.states):
                    yield Sample(reading.family, (*labels, name), name == state)
                continue
            if reading.counts:
                raw = self._widened(reading, source, raw, labels, answers)
                if raw is None:
                    continue
            times, divided = reading.scale
            yield Sample(reading.family, labels, raw * times / divided)

    def _checked(self, reading: Reading, answers: _Answers) -> tuple[Source, float] | None:
        for source in reading.sources:
            raw = answers.raw(source)
            if raw is None:
                continue
            if raw == reading.unknown:
                return None
            # Written so that a NaN is rejected too.
            if not reading.minimum <= raw <= reading.maximum:
                self.rejected[reading.family.name] += 1
                return None
            return source, raw
        return None

    def _widened(
        self, reading: Reading, source: Source, raw: float, labels: tuple[str, ...], answers: _Answers
    ) -> float | None:
        key = (source, labels)
        word = isinstance(source, Field) and answers.is_word(source)
        if not (word and reading.family in table.PCIE_RATES):
            return self._counters.widen(key, raw, word=word)
        # At full speed these wrap ten times a second: without the rate nobody knows how often they did.
        if answers.window is None:
            return None
        if not answers.is_new_window:
            return self._counters.value(key)
        if not answers.window:
            return self._counters.widen(key, raw, word=True)
        rate = answers.rate(table.PCIE_RATES[reading.family])
        if rate is None:
            self._counters.skip(key, raw)
            return None
        return self._counters.widen(key, raw, word=True, expected=rate * _MIB * answers.window)

    def _clock_events(self, uuid: str, answers: _Answers) -> Iterator[Sample]:
        found = self._checked(CLOCK_EVENTS, answers)
        if found is not None:
            supported = answers.call(table.SUPPORTED_CLOCK_EVENTS)
            known = table.COMMON_CLOCK_EVENTS if supported is None else supported
            for reason, bit in table.CLOCK_EVENT_BITS.items():
                if known & bit:
                    yield Sample(CLOCK_EVENTS.family, (uuid, reason), bool(int(found[1]) & bit))

    def _fabric(self, uuid: str, info: dict[str, int] | None) -> Iterator[Sample]:
        # A GPU without a fabric says so; that is no state of one.
        if info is None or not 0 < info["state"] < len(table.FABRIC_STATES):
            return
        for number, state in enumerate(table.FABRIC_STATES[1:], 1):
            yield Sample(names.GPU_FABRIC_STATE, (uuid, state), info["state"] == number)
        mask = info["healthMask"]
        for condition, shift in table.FABRIC_CONDITIONS.items():
            if value := mask >> shift & 3:
                yield Sample(names.GPU_FABRIC_HEALTH, (uuid, condition), value == 1)
        if configuration := mask >> table.FABRIC_CONFIGURATION_SHIFT & 0xF:
            yield Sample(names.GPU_FABRIC_HEALTH, (uuid, "incorrect_configuration"), configuration > 1)

    def _fans(self, uuid: str, fans: Iterable[int | None]) -> Iterator[Sample]:
        for number, percent in enumerate(fans):
            if percent is not None and percent > table.FAN_PERCENT_MAX:
                self.rejected[names.GPU_FAN_SPEED.name] += 1
            elif percent is not None:
                yield Sample(names.GPU_FAN_SPEED, (uuid, str(number)), percent / 100)

    def _links(self, device: Device, answers: _Answers) -> Iterator[Sample]:
        for family, labels, raw in device.links.counters(answers.fields):
            value = self._counters.widen((family, device.uuid, labels), raw)
            yield Sample(family, (device.uuid, *labels), value)
        for state, count in device.links.states(answers.fields, answers.links).items():
            yield Sample(names.GPU_NVLINK_LINKS, (device.uuid, state), count)


class _Answers:
    """What one GPU answers in one scrape; several readings share one call."""

    def __init__(self, nvml: Nvml, device: Device, index: int, driver_release: int, further: Sequence[Request]) -> None:
        self._nvml = nvml
        self._device = device
        self._index = index
        table_fields, places = _fields_of(driver_release)
        wanted = [*table_fields, *device.links.fields]
        requests = [Request(FIELD_VALUES, index, (wanted,)), Request(table.GPM, index, (table.GPM_NUMBERS, None))]
        calls = (*_FIRST_CALLS, *device.substitutes)
        requests += [call.on(index) for call in calls]
        requests += [Request(table.FAN, index, (fan,)) for fan in range(device.fans)]
        requests += [*device.links.requests(index), *further]
        fields, activity, *answers = nvml.queries(requests)
        self._calls = dict(zip(calls, answers, strict=False))
        self.raws: list[float | None] = [None] * len(_PLACES)
        for parts, answer in zip(_PARTS, answers, strict=False):
            if answer is not None:
                for place, attribute in parts:
                    self.raws[place] = answer if attribute is None else answer[attribute]
        answers = answers[len(calls) :]
        self.fans: list[int | None] = answers[: device.fans]
        self.links: list[Any] = answers[device.fans : len(answers) - len(further)]
        self.further: list[Any] = answers[len(answers) - len(further) :]
        #: Seconds of the performance monitor's window, 0 where a first one begins, None without a monitor.
        self.window: float | None = None
        self.is_new_window = False
        self._activity: dict[int, float] = {}
        if activity is not None:
            self.window, self._activity, self.is_new_window = activity
            for number, place in _METRIC_PLACES:
                self.raws[place] = self._activity.get(number)
        self._types: dict[int, int] = {}
        self.fields: dict[tuple[int, int], float | None] = {}
        if fields is not None:
            values = nvml.fields(fields, [number for number, _ in wanted])
            self.fields = dict(zip(device.links.fields, values[len(places) :], strict=True))
            for place, value, answer in zip(places, values, fields, strict=False):
                self.raws[place], self._types[place] = value, answer[1]

    def call(self, source: Call) -> Any:
        whole = _WHOLE[source]
        if whole not in self._calls:
            # From now on it is asked together with the others.
            self._device.substitutes.add(whole)
            self._calls[whole] = self._nvml.query(whole.on(self._index))
        return part(self._calls[whole], source)

    def raw(self, source: Source) -> float | None:
        return self.call(source) if isinstance(source, Call) else self.raws[_PLACES[source]]

    def is_word(self, source: Field) -> bool:
        return self._types[_PLACES[source]] == _UNSIGNED_INT

    def rate(self, metric: int) -> float | None:
        return self._activity.get(metric)


@cache
def _fields_of(driver_release: int) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Return numbers and scopes of the fields that a driver of this release has, and the places of their values."""
    known = [field for field in _FIELDS if field.since <= driver_release < field.until]
    return tuple((field.number, field.scope) for field in known), tuple(_PLACES[field] for field in known)
