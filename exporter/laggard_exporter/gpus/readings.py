"""What a table of a backend consists of: one value of a GPU, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from laggard_exporter.gpus.child_process import Request
from laggard_exporter.samples import Family


class Call(NamedTuple):
    """A function of the library; ``attribute`` is the part of its answer that counts, by name or by index."""

    function: str
    arguments: tuple[int, ...] = ()
    attribute: str | int | None = None

    @property
    def whole(self) -> Call:
        """The same call, all of its answer: several readings share it."""
        return Call(self.function, self.arguments)

    def on(self, device: int | tuple[int, int]) -> Request:
        """Return the request for one GPU."""
        return Request(self.function, device, self.arguments)


#: What a register reads that is not there, as of a device that left the bus.
ALL_ONES = (1 << 32) - 1

S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True)
class Reading(Generic[S_co]):
    """One value of a GPU, from the first source that has an answer.

    It is multiplied by the first of ``scale`` and divided by the second. A raw value outside ``minimum`` to
    ``maximum`` cannot be true and is rejected; ``unknown`` is the raw value by which the library says that it does not
    know. ``states`` makes a state set of it: the name of each raw value. A ``detail`` is read only where it is asked
    for: it tells a part of what another series tells, or what training does not use.
    """

    family: Family
    sources: tuple[S_co, ...]
    scale: tuple[int, int]
    maximum: int
    labels: tuple[str, ...] = ()
    minimum: int = 0
    unknown: int | None = None
    states: tuple[str, ...] = ()
    detail: bool = False

    def holds(self, raw: float) -> bool:
        """Return whether a raw value can be true."""
        # Written so that a NaN is none.
        return self.minimum <= raw <= self.maximum and raw != ALL_ONES

    @property
    def counts(self) -> bool:
        """Whether the value only ever grows, but for a reset."""
        return self.family.kind == "counter"
