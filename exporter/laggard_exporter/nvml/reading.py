"""Walks the table over one GPU and rejects what cannot be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus.counters import Counters
from laggard_exporter.gpus.readings import Reading
from laggard_exporter.nvml import table
from laggard_exporter.nvml.answers import Answers
from laggard_exporter.nvml.devices import NvidiaDevice
from laggard_exporter.nvml.plan import Plan
from laggard_exporter.nvml.table import CLOCK_EVENTS, READINGS, Field, Source
from laggard_exporter.samples import Family, Sample

_MIB = 1 << 20

#: The families whose values are checked.
CHECKED = tuple(
    dict.fromkeys(
        (
            *(reading.family for reading in (*READINGS, CLOCK_EVENTS)),
            names.GPU_FAN_SPEED,
            names.GPU_WORKLOAD_SM_UTILIZATION,
            *table.MIG_ACTIVITY,
        )
    )
)


@dataclass
class _Row:
    """A reading of one GPU, and what came of it in the scrape before."""

    reading: Reading[Source]
    place: int
    labels: tuple[str, ...]
    raw: float | None = None
    """The raw value that gives these samples whenever it comes."""
    samples: tuple[Sample, ...] = ()


class Reader:
    """Makes samples of what GPUs answer to ``plan``; ``rejected`` counts impossible values by metric."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rows: dict[str, list[_Row]] = {}
        self.rejected = Counter({family.name: 0 for family in CHECKED})
        self._counters = Counters()

    def read(self, device: NvidiaDevice, answers: Answers) -> list[Sample]:
        """Return what the GPU says, in base units; what it does not know is left out.

        Raises as :meth:`laggard_exporter.gpus.session.Session.queries`, for a source that is asked for the first time.
        """
        return [
            *self._table(device, answers),
            *self._clock_events(device.uuid, answers),
            *self._fabric(device.uuid, answers.call(table.FABRIC)),
            *self._fans(device.uuid, answers.fans),
            *self._links(device, answers),
        ]

    def ratio(self, family: Family, percent: float) -> float | None:
        """Return the share that NVML gives in per cent, None where it cannot be true."""
        if 0 <= percent <= 100:  # noqa: PLR2004 - per cent; a NaN is no number between
            return percent / 100
        self.rejected[family.name] += 1
        return None

    def _table(self, device: NvidiaDevice, answers: Answers) -> list[Sample]:
        if answers.reject_activity():
            self.rejected[names.GPU_GRAPHICS_ACTIVITY.name] += 1
        raws = answers.raws
        rows = self._rows.get(device.uuid)
        if rows is None:
            rows = [_Row(reading, place, (device.uuid, *reading.labels)) for reading, place in self._plan.first_places]
            self._rows[device.uuid] = rows
        samples: list[Sample] = []
        for row in rows:
            raw = raws[row.place]
            # Most of a GPU's values are those of the scrape before.
            if raw is None or raw != row.raw:
                self._renew(row, raw, answers)
            samples += row.samples
        return samples

    def _renew(self, row: _Row, raw: float | None, answers: Answers) -> None:
        row.raw, row.samples = None, ()
        reading, labels, first = row.reading, row.labels, raw
        source = reading.sources[0]
        if raw is None or not reading.holds(raw):
            found = self._checked(reading, answers)
            if found is None:
                return
            (source, raw), first = found, None
        if reading.states:
            state = reading.states[min(int(raw), len(reading.states) - 1)]
            row.samples = tuple(
                Sample(reading.family, (*labels, name), name == state) for name in dict.fromkeys(reading.states)
            )
        else:
            value = self._widened(reading, source, raw, labels, answers) if reading.counts else raw
            if value is None:
                return
            times, divided = reading.scale
            row.samples = (Sample(reading.family, labels, value * times / divided),)
        # How often those of PCIe wrapped is told by their rate too.
        row.raw = None if reading.family in table.PCIE_RATES else first

    def _checked(self, reading: Reading[Source], answers: Answers) -> tuple[Source, float] | None:
        for source in reading.sources:
            raw = answers.raw(source)
            if raw is None:
                continue
            if raw == reading.unknown:
                return None
            if not reading.holds(raw):
                self.rejected[reading.family.name] += 1
                return None
            return source, raw
        return None

    def _widened(
        self, reading: Reading[Source], source: Source, raw: float, labels: tuple[str, ...], answers: Answers
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

    def _clock_events(self, uuid: str, answers: Answers) -> Iterator[Sample]:
        found = self._checked(CLOCK_EVENTS, answers)
        if found is None:
            return
        supported = answers.call(table.SUPPORTED_CLOCK_EVENTS)
        known = table.COMMON_CLOCK_EVENTS if supported is None else supported
        for reason, bit in table.CLOCK_EVENT_BITS.items():
            if known & bit and (self._plan.details or not self._is_told(reason, answers)):
                yield Sample(CLOCK_EVENTS.family, (uuid, reason), bool(int(found[1]) & bit))

    def _is_told(self, reason: str, answers: Answers) -> bool:
        """Return whether the seconds of this reason say all that it would."""
        field = table.CLOCK_EVENT_FIELDS.get(reason)
        return reason == table.CLOCK_EVENT_DETAIL or (field is not None and answers.raw(field) is not None)

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

    def _links(self, device: NvidiaDevice, answers: Answers) -> Iterator[Sample]:
        for reading, found in device.links.counters(answers.link_values):
            family, labels = reading.family, reading.labels
            if not all(map(reading.holds, found)):
                self.rejected[family.name] += 1
                continue
            value = self._counters.widen((family, device.uuid, labels), sum(found))
            yield Sample(family, (device.uuid, *labels), value)
        for state, count in device.links.states(answers.link_values, answers.links).items():
            yield Sample(names.GPU_NVLINK_LINKS, (device.uuid, state), count)
