"""The step model: where synchronous ranks stand at a time, and what they have counted by then."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from lab.evaluation.model.blocks import REASONS, Array, Block, Maker
from lab.evaluation.model.faults import FOREVER
from lab.evaluation.model.job import HEAD, OWN, TAIL, Job
from laggard.shared.metrics import QUANTILE_STEPS, QUANTILES, RECENT_STEPS
from laggard.shared.phases import Phase

#: Phases that the quantiles of the newest steps are of, in the rows of the ring that holds these steps.
RECENT_PHASES = (*OWN, Phase.COMMUNICATION)


@dataclass
class Moment:
    """Where the ranks stand at one time. Arrays are by rank; totals count steps that ended."""

    steps: Array
    #: Steps in the means; the seconds are those of these steps, of phases as phase by rank.
    counted: Array
    phase_seconds: Array
    fetched_seconds: Array
    #: Steps out of the means and their seconds, by index into REASONS.
    excluded: Array
    excluded_seconds: Array
    #: How long the ranks waited for first batches of epochs.
    first_seconds: Array
    collected_seconds: Array
    collections: Array
    recompilations: int
    #: When each rank last completed a checkpoint; NaN before the first.
    saved: Array
    floor: Array
    last_step: Array
    #: Phase, how long ago it began, collectives begun, whether inside one.
    phase: NDArray[np.int64]
    phase_age: Array
    sequence: Array
    inside: NDArray[np.bool_]


class Training:
    """The steps of one incarnation of a job. Times are seconds of the evaluation's clock; ask in their order."""

    def __init__(self, job: Job, ranks: int, start: float, seed: int) -> None:
        self._ranks = ranks
        self._maker = Maker(job, ranks, start, seed)
        # Time of the newest meeting, and what each rank still does behind it.
        self._met = start
        self._tail = np.zeros(ranks)
        self._number = 0
        self._block: Block | None = None
        self._index = 0
        self._steps = np.zeros(ranks)
        self._counted = np.zeros(ranks)
        self._fetched = np.zeros(ranks)
        self._collected = np.zeros(ranks)
        self._collections = np.zeros(ranks)
        self._excluded = np.zeros(len(REASONS))
        self._excluded_seconds = np.zeros(len(REASONS))
        self._first = np.zeros(ranks)
        self._recompilations = 0
        self._saved = np.full(ranks, np.nan)
        self._seconds = np.zeros((len(Phase), ranks))
        self._floors: deque[tuple[int, Array]] = deque()
        self._ring = np.zeros((len(RECENT_PHASES), RECENT_STEPS, ranks), dtype=np.float32)
        self._rung = 0
        self._seconds_before = self._seconds
        # Of the newest step: what follows its meeting, and whether it counts.
        self._left: list[tuple[Phase, Array]] = []
        self._newest_counts = False
        #: When the newest step but one ended.
        self._earlier_end = np.full(ranks, np.nan)

    def at(self, time: float) -> Moment:
        """Return where the ranks stand."""
        while self._block is None or (not self._block.last and self._block.meetings[-1] <= time):
            if self._block is not None:
                self._take(self._block, len(self._block.meetings))
            self._block, self._index = self._maker.make(self._met, self._tail), 0
        self._take(self._block, int(np.searchsorted(self._block.meetings, time, side="right")))
        return self._moment(self._block, time)

    def quantiles(self, ranks: NDArray[np.int64]) -> Array:
        """Return quantiles over the newest steps, by quantile, row of RECENT_PHASES and chosen rank; NaN of too few."""
        size = min(self._rung, RECENT_STEPS)
        found = np.full((len(QUANTILES), len(RECENT_PHASES), len(ranks)), np.nan)
        places = {
            row: ceil(QUANTILES[name] * size) - 1 for row, name in enumerate(QUANTILES) if size >= QUANTILE_STEPS[name]
        }
        if places:
            ordered = np.partition(self._ring[:, :size, ranks], sorted(set(places.values())), axis=1)
            for row, place in places.items():
                found[row] = ordered[:, place]
        return found

    @property
    def done(self) -> float:
        """When the last step of all ended, as far as it is known by now: infinite while training goes on."""
        block = self._block
        over = block is not None and block.last and self._index == len(block.meetings)
        return self._met + float(self._tail.max()) if over else FOREVER

    def _take(self, block: Block, until: int) -> None:
        """Count the steps of a block that met before an index."""
        start, self._index = self._index, max(self._index, until)
        if until <= start:
            return
        for part in (slice(start, until - 1), slice(until - 1, until)):
            # A step that has not ended on a rank is not in its totals. What would be subtracted again could leave a
            # rounding error, which Prometheus takes for a counter that was reset.
            self._seconds_before = self._seconds.copy()
            self._add(block, part)
        part = slice(start, until)
        if start == 0:
            self._recompilations += block.recompiled
        counted = block.reasons[part] == 0
        if counted.any():
            self._floors.append((until - start, block.waits[part][counted].min(axis=0)))
            while sum(size for size, _ in self._floors) - self._floors[0][0] >= RECENT_STEPS:
                self._floors.popleft()
            self._remember(block, part, counted)
        for step, phase, seconds in block.pauses:
            if phase is Phase.CHECKPOINT and start <= step < until:
                self._saved = np.where(seconds > 0, block.meetings[step] + seconds, self._saved)
        if until >= 2:  # noqa: PLR2004 - the newest step and the one before
            self._earlier_end = block.meetings[until - 2] + block.tails[until - 2]
        elif self._number:
            self._earlier_end = self._met + self._tail
        self._number += until - start
        self._met, self._tail = float(block.meetings[until - 1]), block.tails[until - 1]
        pauses = [(phase, seconds) for step, phase, seconds in block.pauses if step == until - 1]
        self._left = [*pauses, *zip(OWN[TAIL], block.work[TAIL, until - 1], strict=True)]
        self._newest_counts = not block.reasons[until - 1]

    def _remember(self, block: Block, part: slice, counted: NDArray[np.bool_]) -> None:
        """Put counted steps into the ring of the newest ones."""
        steps = np.flatnonzero(counted)[-RECENT_STEPS:] + part.start
        places = (self._rung + np.arange(len(steps))) % RECENT_STEPS
        self._ring[: len(OWN), places] = block.work[:, steps]
        self._ring[len(OWN), places] = block.waits[steps]
        self._rung += len(steps)

    def _add(self, block: Block, part: slice) -> None:
        """Add some steps to the totals."""
        counted = (block.reasons[part] == 0).astype(float)
        self._steps += len(counted)
        self._counted += counted.sum()
        if block.fetches.size:
            self._fetched += counted @ block.fetches[part]
        if block.collected.size:
            self._collected += block.collected[part].sum(axis=0)
            self._collections += (block.collected[part] > 0).sum(axis=0)
        for row, phase in enumerate(OWN):
            self._seconds[phase] += counted @ block.work[row, part]
        self._seconds[Phase.COMMUNICATION] += counted @ block.waits[part]
        for step, phase, seconds in block.pauses:
            if part.start <= step < part.stop:
                self._seconds[phase] += seconds * (block.reasons[step] == 0)
        if len(counted) > counted.sum():
            np.add.at(self._excluded, block.reasons[part], 1)
            np.add.at(self._excluded_seconds, block.reasons[part], block.lengths[part])
            first = block.reasons[part] == REASONS.index("first_batch")
            self._first += first @ block.work[OWN.index(Phase.DATA), part]

    def _moment(self, block: Block, time: float) -> Moment:
        """Make the moment out of the totals: the step of the newest meeting may not have ended on all ranks."""
        since, ranks = time - self._met, self._ranks
        left = (since < self._tail) if self._number else np.zeros(ranks, dtype=bool)
        parts = list(self._left)
        if self._index < len(block.meetings):
            parts += zip(OWN[HEAD], block.work[HEAD, self._index], strict=True)
            order = [*(phase for phase, _ in parts), Phase.COMMUNICATION]
        else:
            # Behind the last step, what the script does is other.
            order = [*(phase for phase, _ in parts), Phase.OTHER]
        edges = np.cumsum(np.array([lengths for _, lengths in parts]).reshape(len(parts), ranks), axis=0)
        position = (edges <= since).sum(axis=0)
        began = np.where(position > 0, edges[np.maximum(position - 1, 0), np.arange(ranks)], 0.0)
        inside = (position == len(parts)) & (order[-1] is Phase.COMMUNICATION)
        return Moment(
            steps=self._steps - left,
            counted=self._counted - left * self._newest_counts,
            phase_seconds=np.where(left, self._seconds_before, self._seconds),
            fetched_seconds=self._fetched.copy(),
            excluded=self._excluded.copy(),
            excluded_seconds=self._excluded_seconds.copy(),
            first_seconds=self._first.copy(),
            collected_seconds=self._collected.copy(),
            collections=self._collections.copy(),
            recompilations=self._recompilations,
            saved=np.where(self._saved <= time, self._saved, np.nan),
            floor=np.min([floor for _, floor in self._floors], axis=0) if self._floors else np.full(ranks, np.nan),
            last_step=np.where(left, self._earlier_end, self._met + self._tail if self._number else np.nan),
            phase=np.array(order)[position],
            phase_age=since - began,
            sequence=self._number + inside,
            inside=inside,
        )
