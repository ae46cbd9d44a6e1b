"""Walks the table over one GPU and rejects what cannot be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

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


class Reader:
    """Makes samples of what GPUs answer to ``plan``; ``rejected`` counts impossible values by metric."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._labels: dict[str, tuple[tuple[str, ...], ...]] = {}
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

    def _table(self, device: NvidiaDevice, answers: Answers) -> Iterator[Sample]:
        if answers.reject_activity():
            self.rejected[names.GPU_GRAPHICS_ACTIVITY.name] += 1
        raws = answers.raws
        all_labels = self._labels.get(device.uuid)
        if all_labels is None:
            all_labels = tuple((device.uuid, *reading.labels) for reading in self._plan.readings)
            self._labels[device.uuid] = all_labels
        for (reading, place), labels in zip(self._plan.first_places, all_labels, strict=True):
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

    def _checked(self, reading: Reading[Source], answers: Answers) -> tuple[Source, float] | None:
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
        for family, labels, raw in device.links.counters(answers.fields):
            value = self._counters.widen((family, device.uuid, labels), raw)
            yield Sample(family, (device.uuid, *labels), value)
        for state, count in device.links.states(answers.fields, answers.links).items():
            yield Sample(names.GPU_NVLINK_LINKS, (device.uuid, state), count)
