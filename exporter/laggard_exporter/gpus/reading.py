"""Walks a backend's table over what one GPU answers, and rejects what cannot be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from laggard_exporter.gpus.counters import Counters
from laggard_exporter.gpus.readings import Call, Reading
from laggard_exporter.samples import Sample

#: What a GPU answers, by call.
Answers = Mapping[Call, Any]


class TableReader:
    """Makes samples of what GPUs answer to ``readings``; ``rejected`` counts impossible values by metric."""

    def __init__(self, readings: Sequence[Reading[Call]]) -> None:
        self._readings = readings
        self._counters = Counters()
        self.rejected = Counter({reading.family.name: 0 for reading in readings})

    def read(self, uuid: str, answers: Answers) -> list[Sample]:
        """Return what the GPU says, in base units; what it does not know is left out."""
        samples: list[Sample] = []
        for reading in self._readings:
            raw = self._checked(reading, answers)
            if raw is None:
                continue
            labels = (uuid, *reading.labels)
            if reading.counts:
                raw = self._counters.widen((reading.family, labels), raw)
            times, divided = reading.scale
            samples.append(Sample(reading.family, labels, raw * times / divided))
        return samples

    def _checked(self, reading: Reading[Call], answers: Answers) -> float | None:
        for source in reading.sources:
            raw = _part(answers.get(source.whole), source)
            if raw is None:
                continue
            if raw == reading.unknown:
                return None
            if not reading.holds(raw):
                self.rejected[reading.family.name] += 1
                return None
            return raw
        return None


def _part(answer: Any, source: Call) -> float | None:
    """Return the part of an answer that the source names; of a list, as of a GPU's dies, the greatest."""
    value: Any = answer if answer is None or source.attribute is None else answer[source.attribute]
    if isinstance(value, list):
        items = cast("list[int | None]", value)
        return max((item for item in items if item is not None), default=None)
    return value
