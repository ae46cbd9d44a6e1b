"""What the ranks of a job and their node exporters expose: series, and their values at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lab.evaluation.model.blocks import REASONS, Array
from lab.evaluation.model.devices import Devices
from lab.evaluation.model.faults import FOREVER, Dropped, Hang, WrongClock
from lab.evaluation.model.job import OWN, Job
from lab.evaluation.model.life import Life
from lab.evaluation.model.memory import memory_rows
from lab.evaluation.model.numbers import number_rows
from lab.evaluation.model.rows import Key, Rows, add
from lab.evaluation.model.steps import RECENT_PHASES, Moment, Training
from lab.evaluation.model.surroundings import EXCESS, SPARE, exported_rows, own_rows
from lab.evaluation.model.target import EPOCH, Target
from laggard.shared.environment import PROMETHEUS_PORT
from laggard.shared.metrics import QUANTILES
from laggard.shared.phases import STILL_SECONDS, STOOD_STILL_SECONDS, Condition, Phase
from laggard_exporter.web.address import PORT

#: Ranks' own metrics are scraped at so many moments of an interval, where there are enough of them.
_PARTS = 3
_RANKS_OF_A_PART = 4
#: What all ranks call, as torch numbers collectives.
_ALL_REDUCE = 1.0


class Incarnation:
    """The processes of a job between two restarts."""

    def __init__(self, job: Job, number: int, start: float, killed: float) -> None:
        self.job = job
        self._number = number
        self._random = np.random.default_rng((job.seed, number))
        self._ranks = job.ranks if number == 0 else job.ranks_after or job.ranks
        self._start = start
        self._training = Training(job, self._ranks, start + job.startup, int(self._random.integers(2**31)))
        self._life = Life(job, self._training, self._random, ranks=self._ranks, start=start, killed=killed)
        self._hosts = [job.host(rank, number if job.moves else 0) for rank in range(self._ranks)]
        self._devices = Devices(job, job.gpus, self._ranks, start, self._random) if job.gpus else None
        self._moment: tuple[float, Moment] | None = None
        #: When exporters last saw each rank stand still.
        self._stood_still = np.full(self._ranks, -np.inf)

    def targets(self, read_by_rules: Collection[str]) -> Iterator[Target]:
        """Yield what is scraped: the ranks in parts, and the node exporters; only series that rules read."""
        job = self.job
        parts = int(np.clip(self._ranks // _RANKS_OF_A_PART, 1, _PARTS))
        rare = np.isin(np.arange(self._ranks), job.rare)
        kinds = [(self._own, (np.arange(self._ranks) % parts == part) & ~rare, False, 1) for part in range(parts)]
        kinds += [(self._own, rare, False, job.rare_every)] if rare.any() else []
        if job.exporter:
            kinds.append((self._exported, np.ones(self._ranks, dtype=bool), True, 1))
        for rows, chosen, exported, every in kinds:
            numbers = np.flatnonzero(chosen)
            kept = [key for key in rows(self._start, numbers) if key[0] in read_by_rules or key[0] == EXCESS]
            yield Target(
                series=[self._line(key, int(rank), exported=exported) for key in kept for rank in numbers],
                read=self._reader(rows, kept, numbers, exported=exported),
                offset=float(self._random.uniform(0.1, 14.9)),
                marks=exported or not job.push,
                begin=self._start,
                every=every,
                # The mark of what is gone, and a last word, come with the scrapes that follow.
                end=self._life.rows_end + 60,
            )

    def _line(self, key: Key, rank: int, *, exported: bool) -> str:
        name, labels = key
        if name.startswith("gpu_") and name != "gpu_workload_info":
            found = {"uuid": f"GPU-{self.job.run}-{rank}", **dict(labels)}
            if found.pop(SPARE, ""):
                found["uuid"] = f"GPU-{self.job.run}-{rank + self._ranks}"
        elif name.startswith("laggard_"):
            found = dict(labels)
        else:
            found = {"training_run": self.job.run, "training_rank": str(rank), **dict(labels)}
        if name == "gpu_workload_info":
            found["uuid"] = f"GPU-{self.job.run}-{rank}"
        found["instance"] = f"{self._hosts[rank]}:{PORT if exported else PROMETHEUS_PORT + rank % self.job.per_host}"
        if "host_name" in found:
            found["host_name"] = self._hosts[rank]
        if len(self.job.stages) > 1 and not exported:
            size = -(-self._ranks // len(self.job.stages))
            found["training_peer_group"] = f"stage-{rank // size}"
        return "\t".join([name, *(part for pair in found.items() for part in pair)])

    def _reader(
        self,
        rows: Callable[[float, NDArray[np.int64]], Rows],
        kept: list[Key],
        numbers: NDArray[np.int64],
        *,
        exported: bool,
    ) -> Callable[[float], Array]:
        def read(time: float) -> Array:
            found = np.full((len(kept), len(numbers)), np.nan)
            if time < self._start:
                return found.ravel()
            self._at(time)
            present = self._life.answers(time, exported=exported)[numbers]
            if not present.any():
                return found.ravel()
            values = rows(time, numbers)
            for row, key in enumerate(kept):
                found[row] = values[key][numbers]
            found[:, ~present] = np.nan
            return found.ravel()

        return read

    def _at(self, time: float) -> Moment:
        if self._moment is None or self._moment[0] != time:
            self._moment = time, self._training.at(max(time, self._start + self.job.startup))
        return self._moment[1]

    def _own(self, time: float, numbers: NDArray[np.int64]) -> Rows:
        """Return what the ranks export."""
        moment, job, ranks = self._at(time), self.job, self._ranks
        rows: Rows = {}

        def put(name: str, values: object, /, **labels: str) -> None:
            add(rows, ranks, f"training_{name}", values, **labels)

        seconds = moment.phase_seconds
        put("steps_total", moment.steps)
        put("step_duration_seconds_sum", seconds.sum(axis=0))
        put("step_duration_seconds_count", moment.counted)
        put("step_own_duration_seconds_sum", seconds[list(OWN)].sum(axis=0))
        put("step_own_duration_seconds_count", moment.counted)
        for phase in Phase:
            begun = seconds[phase].any() and (job.measures_communication or phase is not Phase.COMMUNICATION)
            put("phase_duration_seconds_sum", seconds[phase] if begun else np.nan, training_phase=phase.label)
            put("phase_duration_seconds_count", moment.counted if begun else np.nan, training_phase=phase.label)
        quantiles = np.full((len(QUANTILES), len(RECENT_PHASES), ranks), np.nan)
        quantiles[:, :, numbers] = self._training.quantiles(numbers)
        for row, phase in enumerate(RECENT_PHASES):
            for column, name in enumerate(QUANTILES):
                known = quantiles[column, row] if job.measures_communication or row < len(OWN) else np.nan
                labels = {"training_phase": phase.label, "training_quantile": name}
                put("phase_duration_quantile_seconds", known, **labels)
        for index, reason in enumerate(REASONS):
            if reason:
                put("steps_excluded_total", moment.excluded[index], training_reason=reason)
                put("steps_excluded_duration_seconds_total", moment.excluded_seconds[index], training_reason=reason)
        put("dataloader_first_batch_duration_seconds_sum", moment.first_seconds)
        put("dataloader_first_batch_duration_seconds_count", moment.excluded[REASONS.index("first_batch")])
        put("compile_recompilations_total", moment.recompilations)
        # Young objects are collected at every step, in no time.
        for generation, collections, spent in (
            ("0", moment.steps, 1e-4 * moment.steps * job.own),
            ("2", moment.collections, moment.collected_seconds),
        ):
            put("gc_collections_total", collections, training_gc_generation=generation)
            put("gc_duration_seconds_total", spent, training_gc_generation=generation)
        put("checkpoint_last_save_timestamp_seconds", moment.saved + EPOCH)
        loader = job.loader
        put("dataloader_fetch_duration_seconds_sum", moment.fetched_seconds if loader else np.nan)
        put("dataloader_fetch_duration_seconds_count", moment.counted if loader else np.nan)
        put("dataloader_workers", loader.workers if loader else np.nan)
        computed = moment.fetched_seconds * loader.computing if loader else np.nan
        put("dataloader_worker_cpu_time_seconds_total", computed)
        put("communication_floor_seconds", moment.floor if job.measures_communication else np.nan)
        put("last_step_timestamp_seconds", moment.last_step + EPOCH + self._clocks(time))
        put("ranks_expected", ranks)
        for state, values in self._life.states(time, moment).items():
            put("rank_state", values, training_state=state)
        put("signal_available", 1.0, training_signal="data")
        put("signal_available", float(job.measures_communication), training_signal="communication")
        facts = {"training_workload": job.workload} if job.workload else {}
        put("rank_start_timestamp_seconds", self._start + EPOCH, host_name="", **facts)
        put("telemetry_dropped_total", self._dropped(time, moment), training_reason="buffer_full")
        rows |= own_rows(job, ranks, time)
        rows |= memory_rows(job, ranks, self._start, time, self._random)
        rows |= number_rows(job, moment, self._random, start=self._start, time=time)
        return rows

    def _clocks(self, time: float) -> Array:
        wrong = np.zeros(self._ranks)
        for fault in self.job.of(WrongClock):
            if fault.at(time):
                wrong[list(fault.ranks)] += fault.seconds
        return wrong

    def _dropped(self, time: float, moment: Moment) -> Array:
        dropped = np.zeros(self._ranks)
        for fault in self.job.of(Dropped):
            if time >= fault.begin:
                share = min(1.0, (time - fault.begin) / max(1.0, time - self._start))
                dropped[list(fault.ranks)] += np.floor(fault.rate * moment.steps[list(fault.ranks)] * share)
        return dropped

    def _exported(self, time: float, numbers: NDArray[np.int64]) -> Rows:
        """Return what node exporters say of the ranks' processes and GPUs, all of them whichever are wanted."""
        del numbers
        moment, life, ranks = self._at(time), self._life, self._ranks
        alive = ~life.dead(time) & ~life.finished(time)
        rows: Rows = {}

        def put(name: str, values: object, /, **labels: str) -> None:
            add(rows, ranks, f"training_process_{name}", values, **labels)

        before = time < self._start + self.job.startup
        put("up", alive)
        for state, values in life.states(time, moment).items():
            put("state", values, training_state=state)
        put("steps_total", moment.steps)
        age = np.broadcast_to(time - self._start if before else moment.phase_age, ranks)
        put("phase_age_seconds", age)
        put("last_step_age_seconds", time - moment.last_step)
        # As an exporter measures it, once it has seen two steps.
        usual = 0.0 if before else self.job.own
        condition = np.select(
            [life.finished(time) & ~life.dead(time), ~alive, life.stopped(time), age > max(STILL_SECONDS, usual)],
            [Condition.ENDED, Condition.DEAD, Condition.STOPPED, Condition.QUIET],
            Condition.GOES_ON,
        )
        self._stood_still[condition != Condition.GOES_ON] = time
        in_detail = time - self._stood_still <= STOOD_STILL_SECONDS

        def put_still(name: str, values: ArrayLike, /, **labels: str) -> None:
            put(name, np.where(in_detail, values, np.nan), **labels)

        put_still("condition", condition)
        put_still("standstill_seconds", age)
        put_still("stopped", np.where(alive, life.stopped(time), np.nan))
        for phase in Phase:
            inside = phase is Phase.OTHER if before else moment.phase == phase
            put_still("phase", inside, host_name="", training_phase=phase.label)
        put_still("collective_sequence", moment.sequence, training_process_group="world")
        put_still("collective_operation", np.where(before, np.nan, _ALL_REDUCE), training_process_group="world")
        put_still("in_collective", moment.inside & (not before), training_process_group="world")
        for hang in self.job.of(Hang):
            if hang.ras:
                name, value = hang.ras
                told = np.isin(np.arange(ranks), hang.ranks) & hang.at(time) & (age > STILL_SECONDS)
                put_still(name, np.where(told, value, np.nan))
        for (by, word), ended in life.failures(time).items():
            labels = {"host_name": "", "training_phase": Phase.BACKWARD.label}
            put("failure_timestamp_seconds", ended + EPOCH, **labels, training_ended_by=by, training_ended_with=word)
        put("world_size", ranks)
        put("start_timestamp_seconds", self._start + EPOCH)
        put("info", 1.0, host_name="", process_pid=str(1 + self._number))
        if self._devices is not None:
            rows |= self._devices.rows(time, moment, EPOCH)
        return rows | exported_rows(self.job, ranks, time)


def incarnations(job: Job) -> list[Incarnation]:
    """Return the job's processes before, between and after its restarts."""
    starts = [job.start, *(at + job.down for at in job.restarts)]
    return [Incarnation(job, *each) for each in zip(range(len(starts)), starts, [*job.restarts, FOREVER], strict=True)]
