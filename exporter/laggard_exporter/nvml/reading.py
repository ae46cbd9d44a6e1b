"""Walks the table over one GPU and rejects what can not be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from laggard_exporter.nvml.library import FIELD_VALUES, Nvml
from laggard_exporter.nvml.table import CLOCK_EVENT_BITS, CLOCK_EVENTS, READINGS, Call, Field, Reading
from laggard_exporter.samples import Sample

_ALL_READINGS = (*READINGS, CLOCK_EVENTS)
_SOURCES = tuple(source for reading in _ALL_READINGS for source in reading.sources)
_FIELDS = tuple(source for source in _SOURCES if isinstance(source, Field))

#: The functions of nvidia-ml-py that a GPU is read with.
FUNCTIONS = (FIELD_VALUES, *dict.fromkeys(source.function for source in _SOURCES if isinstance(source, Call)))


class Reader:
    """Reads GPUs through ``nvml``; ``rejected`` counts impossible values by metric."""

    def __init__(self, nvml: Nvml) -> None:
        self.rejected = Counter({reading.family.name: 0 for reading in _ALL_READINGS})
        self._nvml = nvml

    def read(self, uuid: str, handle: Any, driver_release: int) -> Iterator[Sample]:
        """Yield what the GPU behind ``handle`` says, in base units; what it does not know is left out.

        Raises :class:`~laggard_exporter.nvml.library.DeviceLostError` and
        :class:`~laggard_exporter.nvml.library.SessionLostError`.
        """
        answers = _Answers(self._nvml, handle, driver_release)
        for reading in READINGS:
            raw = self._checked(reading, answers)
            if raw is not None:
                yield Sample(reading.family, (uuid, *reading.labels), float(raw * reading.scale))
        bits = self._checked(CLOCK_EVENTS, answers)
        if bits is not None:
            for event in CLOCK_EVENT_BITS:
                if event.since <= driver_release:
                    yield Sample(CLOCK_EVENTS.family, (uuid, event.reason), bool(int(bits) & event.bit))

    def _checked(self, reading: Reading, answers: _Answers) -> float | None:
        raw = next((raw for source in reading.sources if (raw := answers.raw(source)) is not None), None)
        if raw is None or raw == reading.unknown:
            return None
        # Written so that a NaN is rejected too.
        if not reading.minimum <= raw <= reading.maximum:
            self.rejected[reading.family.name] += 1
            return None
        return raw


class _Answers:
    """What one GPU answers in one scrape; several readings share one call."""

    def __init__(self, nvml: Nvml, handle: Any, driver_release: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._calls: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._fields = nvml.fields(
            handle, [field.number for field in _FIELDS if field.since <= driver_release < field.until]
        )

    def raw(self, source: Call | Field) -> float | None:
        if isinstance(source, Field):
            return self._fields.get(source.number)
        key = (source.function, source.arguments)
        if key not in self._calls:
            self._calls[key] = self._nvml.query(source.function, self._handle, *source.arguments)
        answer = self._calls[key]
        return getattr(answer, source.attribute) if answer is not None and source.attribute else answer
