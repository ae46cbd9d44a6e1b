"""What every GPU is asked for in a scrape, and where each answer is kept: made of the table once."""

from __future__ import annotations

from functools import cache

from laggard_exporter.gpus.readings import Call
from laggard_exporter.nvml import table
from laggard_exporter.nvml.table import Field, Metric


class Plan:
    """The readings of a scrape; ``details`` adds those that only a search for a fault in hardware needs."""

    def __init__(self, *, details: bool) -> None:
        self.details = details
        self.readings = tuple(reading for reading in table.READINGS if details or not reading.detail)
        sources = tuple(source for reading in (*self.readings, table.CLOCK_EVENTS) for source in reading.sources)
        firsts = (*(reading.sources[0] for reading in self.readings), table.CLOCK_EVENTS.sources[0])
        #: What every GPU is asked for; other calls only where they stand in for a source that the GPU does not have.
        self.first_calls = tuple(
            dict.fromkeys(
                (
                    *(first.whole for first in firsts if isinstance(first, Call)),
                    table.SUPPORTED_CLOCK_EVENTS,
                    table.FABRIC,
                )
            )
        )
        #: The place of each source's raw value in a list: a scrape reads a thousand of them.
        self.places = {source: place for place, source in enumerate(dict.fromkeys(sources))}
        self.first_places = tuple((reading, self.places[reading.sources[0]]) for reading in self.readings)
        self.metric_places = tuple(
            (source.number, place) for source, place in self.places.items() if isinstance(source, Metric)
        )
        #: Of each first call, where its parts go.
        self.parts = tuple(
            [
                (place, source.attribute)
                for source, place in self.places.items()
                if isinstance(source, Call) and source.whole == call
            ]
            for call in self.first_calls
        )
        #: The metrics of GPM that are asked for.
        self.gpm_numbers = (*(number for number, _ in self.metric_places), *table.PCIE_RATES.values())
        #: The function of every call, those that stand in for others too.
        self.functions = tuple(
            dict.fromkeys(call.function for call in (*self.first_calls, *sources) if isinstance(call, Call))
        )
        self.fields_of = cache(self._fields_of)

    def _fields_of(self, driver_release: int) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """Return numbers and scopes of the fields that a driver of this release has, and the places of their values."""
        known = [
            field for field in self.places if isinstance(field, Field) and field.since <= driver_release < field.until
        ]
        return tuple((field.number, field.scope) for field in known), tuple(self.places[field] for field in known)
