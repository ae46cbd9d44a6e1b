"""Which processes of a job live, and which targets answer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lab.evaluation.model.faults import Death, ExporterLost, Fault, Hang, MetricsLost
from lab.evaluation.model.job import Job
from lab.evaluation.model.steps import Moment, Training
from laggard.shared.phases import RankState

#: An exporter shows the file of a dead process for so long.
DEAD_FILE_SECONDS = 900.0

Mask = NDArray[np.bool_]


class Life:
    """The processes of one incarnation. Its training must have been asked for the same time before."""

    def __init__(
        self, job: Job, training: Training, random: np.random.Generator, *, ranks: int, start: float, killed: float
    ) -> None:
        self._job, self._ranks, self._start, self._killed = job, ranks, start, killed
        self._training, self._random = training, random
        #: When exporters show these processes no longer: a restart on the same host takes their rows over.
        self.rows_end = killed + (DEAD_FILE_SECONDS if job.moves else job.down)
        self._late = job.apart * random.random(ranks)
        self._told_end = np.zeros(ranks, dtype=bool)

    def finished(self, time: float) -> Mask:
        """Return which ranks have ended cleanly."""
        return time >= self._training.done + self._late

    def dead(self, time: float) -> Mask:
        """Return which ranks were killed."""
        return self._hit(Death, time) | (time >= self._killed)

    def failures(self, time: float) -> dict[tuple[str, str], NDArray[np.float64]]:
        """Return when ranks ended without a clean end, for each way in which any does; NaN for the others."""
        deaths = [death for death in self._job.of(Death) if death.begin >= self._start]
        found = {(death.by, death.word): np.full(self._ranks, np.nan) for death in deaths}
        for death in deaths:
            if death.at(time):
                found[death.by, death.word][[rank for rank in death.ranks if rank < self._ranks]] = death.begin
        return found

    def stopped(self, time: float) -> Mask:
        """Return which processes the kernel holds."""
        stopped = np.zeros(self._ranks, dtype=bool)
        for hang in self._job.of(Hang):
            if hang.stopped and hang.at(time) and hang.begin >= self._start:
                stopped[list(hang.ranks)] = True
        return stopped

    def states(self, time: float, moment: Moment) -> dict[str, Mask]:
        """Return which ranks are in which state, by their own word."""
        finished = self.finished(time) & ~self.dead(time)
        starting = (moment.steps == 0) & ~finished
        return {
            RankState.STARTING.label: starting,
            RankState.RUNNING.label: ~starting & ~finished,
            RankState.FINISHED.label: finished,
            RankState.FAILED.label: np.zeros(self._ranks, dtype=bool),
        }

    def answers(self, time: float, *, exported: bool) -> Mask:
        """Return which ranks a scrape finds: of their own metrics, or of their exporters'."""
        dead, finished = self.dead(time), self.finished(time)
        job = self._job
        if exported:
            lost = self._hit(ExporterLost, time)
            for death in job.of(Death):
                if death.with_host and death.at(time) and death.begin >= self._start:
                    lost[list(death.ranks)] = True
            hosts = np.arange(self._ranks) // job.per_host
            lost |= (self._random.random(hosts[-1] + 1) < job.lost_scrapes)[hosts]
            old = finished & (time >= self._training.done + self._late + DEAD_FILE_SECONDS)
            return ~lost & ~old & (time < self.rows_end)
        # A pushing rank's last word is that it has finished.
        last_word = finished & ~self._told_end & job.push
        self._told_end |= finished
        lost = self._hit(MetricsLost, time) | (self._random.random(self._ranks) < job.lost_scrapes)
        return (~dead & ~finished & ~self.stopped(time) & ~lost) | (last_word & ~dead)

    def _hit(self, kind: type[Fault], time: float) -> Mask:
        """Return which ranks a kind of fault has now."""
        hit = np.zeros(self._ranks, dtype=bool)
        for fault in self._job.of(kind):
            if fault.at(time) and fault.begin >= self._start:
                hit[[rank for rank in getattr(fault, "ranks", ()) if rank < self._ranks]] = True
        return hit
