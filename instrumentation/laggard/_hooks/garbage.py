"""Pauses of Python's garbage collection, which hold the training thread wherever they begin."""

from __future__ import annotations

import gc
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any

from laggard._hooks.base import Hook
from laggard._part import Host
from laggard._steps import Step
from laggard.shared import metrics
from laggard.shared.attributes import Attribute

if TYPE_CHECKING:
    from laggard._report import Report

_GENERATIONS = 3
#: Pauses kept between two drains, for attributing them to steps; the sums know all of them.
_RING = 1024
#: Pauses kept for steps that are still to be reported.
_MAX_PAUSES = 4096


class GarbageHook(Hook):
    """Listens to the garbage collector."""

    name = "garbage"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        # All that the callback writes is made here: objects made in a collection would bring the next one closer.
        self._durations = array("q", bytes(8 * _GENERATIONS))
        self._collections = array("q", bytes(8 * _GENERATIONS))
        self._ring = array("q", bytes(8 * 2 * _RING))
        self._count = 0
        self._started = 0
        self._taken = 0
        self._pauses: deque[tuple[int, int]] = deque(maxlen=_MAX_PAUSES)
        self._reported: list[tuple[int, int]] | None = None
        self._callback = self._make_callback()

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for torch: what does not load it does not train."""
        return {"torch": self._patch}

    def uninstall(self) -> None:
        """Stop listening."""
        super().uninstall()
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def steps_ended(self, steps: list[Step]) -> None:  # noqa: ARG002 - the pauses of steps that still run too
        """Take the pauses out of the ring."""
        count = self._count
        for index in range(max(self._taken, count - _RING), count):
            place = 2 * (index % _RING)
            self._pauses.append((self._ring[place], self._ring[place + 1]))
        self._taken = count

    def step_attributes(self, step: Step) -> Mapping[str, float]:
        """Return the time in which the step stood still for a collection."""
        inside = (min(end, step.ended) - max(start, step.started) for start, end in self._pauses)
        return {Attribute.STEP_GC: sum(overlap for overlap in inside if overlap > 0) * 1e-9}

    def report(self, report: Report) -> None:
        """Report the collections since the last call."""
        now = list(zip(self._durations, self._collections, strict=True))
        before = self._reported or [(0, 0)] * _GENERATIONS
        for generation, ((duration, collections), (last_duration, last_collections)) in enumerate(
            zip(now, before, strict=True)
        ):
            if collections != last_collections or self._reported is None:
                report.measure(metrics.GC_DURATION, (duration - last_duration) * 1e-9, str(generation))
                report.measure(metrics.GC_COLLECTIONS, collections - last_collections, str(generation))
        self._reported = now

    def _patch(self, _torch: ModuleType) -> None:
        gc.callbacks.append(self._callback)

    def _make_callback(self) -> Callable[[str, dict[str, Any]], None]:
        durations, collections, ring = self._durations, self._collections, self._ring

        def on_collection(phase: str, info: dict[str, Any]) -> None:
            # The collector reports an exception here and goes on; the hook's wrapper would cost as much as all this.
            if phase == "start":
                self._started = perf_counter_ns()
                return
            ended = perf_counter_ns()
            generation = info["generation"]
            durations[generation] += ended - self._started
            collections[generation] += 1
            place = 2 * (self._count % _RING)
            ring[place] = self._started
            ring[place + 1] = ended
            self._count += 1

        return on_collection
