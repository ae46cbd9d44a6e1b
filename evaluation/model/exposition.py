"""What the ranks of a job and their node exporters expose: series, and their values at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.job import FOREVER, OWN, Death, ExporterLost, Fault, Hang, Job, MetricsLost
from evaluation.steps import Array, Moment, Training
from laggard.conventions import Phase, RankState

#: Unix time at which the evaluation's clock begins.
EPOCH = 1_700_000_000
#: Prometheus' mark of a series that a scrape no longer found.
STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]
#: An exporter shows the file of a dead process for so long.
_DEAD_FILE_SECONDS = 900.0
#: Ranks' own metrics are scraped at so many moments of an interval.
_PARTS = 3

Rows = dict[tuple[str, tuple[tuple[str, str], ...]], Array]


@dataclass
class Target:
    """Series that are scraped at one moment: labels, and what they are worth at a time (NaN: not there)."""

    series: list[str]
    read: Callable[[float], Array]
    #: Seconds into each interval.
    offset: float
    #: Whether Prometheus marks what is gone.
    marks: bool
    _there: NDArray[np.bool_] | None = None

    def sample(self, time: float) -> Array:
        """Return the values to store, with marks for what the scrape before still found."""
        values = self.read(time)
        there = ~np.isnan(values)
        if self.marks and self._there is not None:
            values[self._there & ~there] = STALE
        self._there = there
        return values


class Incarnation:
    """The processes of a job between two restarts."""

    def __init__(self, job: Job, number: int, start: float, killed: float) -> None:
        self.job = job
        self._random = np.random.default_rng((job.seed, number))
        self._ranks = job.ranks if number == 0 else job.ranks_after or job.ranks
        self._start, self._killed = start, killed
        self._training = Training(job, self._ranks, start + job.startup, int(self._random.integers(2**31)))
        moved = number if job.moves else 0
        self._hosts = [f"{job.run}-node-{rank // job.per_host + 1000 * moved}" for rank in range(self._ranks)]
        #: A restart on the same host takes the exporter's rows over.
        self._rows_end = killed + (_DEAD_FILE_SECONDS if job.moves else job.down)
        self._late = job.apart * self._random.random(self._ranks)
        self._told_end = np.zeros(self._ranks, dtype=bool)
        self._moment: tuple[float, Moment] | None = None

    def targets(self, read_by_rules: Collection[str]) -> Iterator[Target]:
        """Yield what is scraped: the ranks in parts, and the node exporters; only series that rules read."""
        job = self.job
        kinds = [(self._own, np.arange(self._ranks) % _PARTS == part, False) for part in range(_PARTS)]
        if job.exporter:
            kinds.append((self._exported, np.ones(self._ranks, dtype=bool), True))
        for rows, chosen, exported in kinds:
            if not chosen.any():
                continue
            kept = [key for key in rows(self._start) if key[0] in read_by_rules]
            numbers = np.flatnonzero(chosen)
            yield Target(
                series=[self._line(key, int(rank), exported) for key in kept for rank in numbers],
                read=self._reader(rows, kept, numbers, exported),
                offset=float(self._random.uniform(0.1, 14.9)),
                marks=exported or not job.push,
            )

    def _line(self, key: tuple[str, tuple[tuple[str, str], ...]], rank: int, exported: bool) -> str:  # noqa: FBT001
        name, labels = key
        found = {"training_run": self.job.run, "training_rank": str(rank), **dict(labels)}
        found["instance"] = f"{self._hosts[rank]}:{9495 if exported else 9464 + rank % self.job.per_host}"
        if "host_name" in found:
            found["host_name"] = self._hosts[rank]
        if len(self.job.stages) > 1 and not exported:
            size = -(-self._ranks // len(self.job.stages))
            found["training_peer_group"] = f"stage-{rank // size}"
        return "\t".join([name, *(part for pair in found.items() for part in pair)])

    def _reader(
        self,
        rows: Callable[[float], Rows],
        kept: list[tuple[str, tuple[tuple[str, str], ...]]],
        numbers: NDArray[np.int64],
        exported: bool,  # noqa: FBT001
    ) -> Callable[[float], Array]:
        def read(time: float) -> Array:
            found = np.full((len(kept), len(numbers)), np.nan)
            if time < self._start:
                return found.ravel()
            present = self._answers(time, exported)
            if not present.any():
                return found.ravel()
            values = rows(time)
            for row, key in enumerate(kept):
                found[row] = np.where(present, values[key], np.nan)[numbers]
            return found.ravel()

        return read

    # Which processes live, and which targets answer.

    def _at(self, time: float) -> Moment:
        if self._moment is None or self._moment[0] != time:
            self._moment = time, self._training.at(max(time, self._start + self.job.startup))
        return self._moment[1]

    def _hit(self, kind: type[Fault], time: float) -> NDArray[np.bool_]:
        """Return which ranks a kind of fault has now."""
        hit = np.zeros(self._ranks, dtype=bool)
        for fault in self.job.of(kind):
            if fault.at(time) and fault.begin >= self._start:
                hit[[rank for rank in getattr(fault, "ranks", ()) if rank < self._ranks]] = True
        return hit

    def _finished(self, time: float) -> NDArray[np.bool_]:
        self._at(time)
        return time >= self._training.done + self._late

    def _dead(self, time: float) -> NDArray[np.bool_]:
        return self._hit(Death, time) | (time >= self._killed)

    def _stopped(self, time: float) -> NDArray[np.bool_]:
        stopped = np.zeros(self._ranks, dtype=bool)
        for hang in self.job.of(Hang):
            if hang.stopped and hang.at(time) and hang.begin >= self._start:
                stopped[list(hang.ranks)] = True
        return stopped

    def _answers(self, time: float, exported: bool) -> NDArray[np.bool_]:  # noqa: FBT001
        dead, finished = self._dead(time), self._finished(time)
        if exported:
            lost = self._hit(ExporterLost, time)
            for death in self.job.of(Death):
                if death.with_host and death.at(time):
                    lost[list(death.ranks)] = True
            hosts = np.arange(self._ranks) // self.job.per_host
            lost |= (self._random.random(hosts[-1] + 1) < self.job.lost_scrapes)[hosts]
            over = time >= self._rows_end
            old = finished & (time >= self._training.done + self._late + _DEAD_FILE_SECONDS)
            return ~lost & ~old & (not over)
        # A pushing rank's last word is that it has finished.
        last_word = finished & ~self._told_end & self.job.push
        self._told_end |= finished
        lost = self._hit(MetricsLost, time) | (self._random.random(self._ranks) < self.job.lost_scrapes)
        return (~dead & ~finished & ~self._stopped(time) & ~lost) | (last_word & ~dead)

    # The values.

    def _own(self, time: float) -> Rows:
        moment, job = self._at(time), self.job
        rows: Rows = {}

        def add(name: str, values: object, **labels: str) -> None:
            rows[f"training_{name}", tuple(labels.items())] = np.broadcast_to(
                np.asarray(values, dtype=float), self._ranks
            )

        seconds = moment.phase_seconds
        own = seconds[list(OWN)].sum(axis=0)
        add("steps_total", moment.steps)
        add("step_duration_seconds_sum", seconds.sum(axis=0))
        add("step_duration_seconds_count", moment.counted)
        add("step_own_duration_seconds_sum", own)
        add("step_own_duration_seconds_count", moment.counted)
        for phase in Phase:
            begun = seconds[phase].any() and (job.measures_communication or phase is not Phase.COMMUNICATION)
            add("phase_duration_seconds_sum", seconds[phase] if begun else np.nan, training_phase=phase.label)
            add("phase_duration_seconds_count", moment.counted if begun else np.nan, training_phase=phase.label)
        loads = job.loader is not None
        add("dataloader_fetch_duration_seconds_sum", moment.fetched_seconds if loads else np.nan)
        add("dataloader_fetch_duration_seconds_count", moment.counted if loads else np.nan)
        add("dataloader_workers", job.loader[0] if job.loader else np.nan)
        add("communication_floor_seconds", moment.floor if job.measures_communication else np.nan)
        add("last_step_timestamp_seconds", moment.last_step + EPOCH)
        add("ranks_expected", self._ranks)
        for state, values in self._states(time, moment).items():
            add("rank_state", values, training_state=state)
        add("signal_available", 1.0, training_signal="data")
        add("signal_available", float(job.measures_communication), training_signal="communication")
        add("rank_start_timestamp_seconds", self._start + EPOCH, host_name="")
        return rows

    def _exported(self, time: float) -> Rows:
        moment = self._at(time)
        dead, finished = self._dead(time), self._finished(time)
        alive = ~dead & ~finished
        rows: Rows = {}

        def add(name: str, values: object, **labels: str) -> None:
            rows[f"training_process_{name}", tuple(labels.items())] = np.broadcast_to(
                np.asarray(values, dtype=float), self._ranks
            )

        starting = moment.steps == 0
        add("up", alive)
        for state, values in self._states(time, moment).items():
            add("state", values, training_state=state)
        add("stopped", np.where(alive, self._stopped(time), np.nan))
        add("steps_total", moment.steps)
        for phase in Phase:
            add("phase", np.where(starting & (time < self._start + self.job.startup), phase is Phase.OTHER,
                                  moment.phase == phase), training_phase=phase.label)  # fmt: skip
        before = time < self._start + self.job.startup
        add("phase_age_seconds", time - self._start if before else moment.phase_age)
        add("last_step_age_seconds", time - moment.last_step)
        add("collective_sequence", moment.sequence, training_process_group="world")
        add("in_collective", moment.inside & (not before), training_process_group="world")
        add("world_size", self._ranks)
        add("start_timestamp_seconds", self._start + EPOCH)
        add("info", 1.0, host_name="", process_pid="1")
        return rows

    def _states(self, time: float, moment: Moment) -> dict[str, NDArray[np.bool_]]:
        finished = self._finished(time) & ~self._dead(time)
        starting = (moment.steps == 0) & ~finished
        return {
            RankState.STARTING.label: starting,
            RankState.RUNNING.label: ~starting & ~finished,
            RankState.FINISHED.label: finished,
            RankState.FAILED.label: np.zeros(self._ranks, dtype=bool),
        }


def incarnations(job: Job) -> list[Incarnation]:
    """Return the job's processes before and after its restart, if it has one."""
    made = [Incarnation(job, 0, job.start, job.restart)]
    if job.restart < FOREVER:
        made.append(Incarnation(job, 1, job.restart + job.down, FOREVER))
    return made
