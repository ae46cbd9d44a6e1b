"""What all ranks lose to the pipeline of the step: one run for each fault, all at once."""

from __future__ import annotations

from collections.abc import Iterable

from scenario import Firing, Play, Scenario, ranks
from world import Device, Rank

FAMILIES = ("pipeline", "shape")
EVERY = 60

CPU = "training_dataloader_worker_cpu_time_seconds_total"
GC = "training_gc_duration_seconds_total{gc_generation=2}"
COMPILED = "training_steps_excluded_duration_seconds_total{reason=compile}"
EXCLUDED = "training_steps_excluded_total{reason=compile}"
COLLECTIONS = "training_gc_collections_total{gc_generation=2}"
WAIT = "training_phase_duration_quantile_seconds{{phase=communication,quantile={}}}"
RECOMPILATIONS = "training_compile_recompilations_total"


def _input(run: str) -> Firing:
    return Firing("TrainingInputBound", phase="data", run=run)


WORKERS = Firing("TrainingInputWorkersBusy", phase="data", run="workers")
STORAGE = Firing("TrainingInputStorageSlow", phase="data", run="storage")
COPY = Firing("TrainingCopyBound", phase="h2d", run="copy")
SERIAL = Firing("TrainingHiddenSerialization", phase="other", run="serial")
COLLECTION = Firing("TrainingGarbageCollection", run="collection")
SPREAD = Firing("TrainingGarbageCollection", run="spread")
SAVING = Firing("TrainingCheckpointSlow", phase="checkpoint", run="saving")
COMPILING = Firing("TrainingRecompilationStorm", run="compiling")


def _runs(*names: str, count: int = 2) -> Scenario:
    scenario = Scenario([rank for name in names for rank in ranks(count, run=name)], tick=30)
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    return scenario


def _of(scenario: Scenario, run: str) -> Iterable[Rank]:
    return (rank for rank in scenario.world.ranks if rank.run == run)


def _loaders(scenario: Scenario, run: str, *, data: float, fetch: float, cpu: float) -> None:
    """Give each rank of a run two data workers, with what each needs for a batch and computes in a second."""
    for rank in _of(scenario, run):
        rank.work["data"], rank.fetch, rank.counters[CPU] = data, fetch, 2 * cpu


def _faults(scenario: Scenario, size: float) -> None:
    """Break each run in its own way, by a multiple of what is tolerated, or mend it with a size of 0."""
    # A step of 0.2 s: workers that need longer than 0.4 s for a batch are what it waits for.
    _loaders(scenario, "workers", data=0.01 + 0.1 * size, fetch=0.4 + 0.2 * size, cpu=0.3 + 0.5 * size)
    _loaders(scenario, "storage", data=0.01 + 0.1 * size, fetch=0.4 + 0.2 * size, cpu=0.25)
    for rank in _of(scenario, "copy"):
        rank.work["h2d"] = 0.01 + 0.04 * size
    for rank in _of(scenario, "serial"):
        rank.work["other"] = 0.01 + 0.09 * size
    for rank in _of(scenario, "collection"):
        rank.counters[GC] = 0.09375 * size
        rank.work["other"] = 0.01 + 0.1 * size
    for rank in _of(scenario, "spread"):
        # Each collects for 3 % of its time, at steps of its own: each waits for the others.
        rank.counters[GC] = 0.03125 * size
        rank.measured_wait, rank.floor = (0.03, 0.01) if size else (None, None)
    for rank in _of(scenario, "saving"):
        rank.work["checkpoint"] = 0.15 * size
    for rank in _of(scenario, "compiling"):
        rank.counters[COMPILED], rank.counters[EXCLUDED] = 0.125 * size, 0.0625 * size
        rank.counters[RECOMPILATIONS] = 0.0625 * size


def faults() -> Scenario:
    """Each cause has its own alert within its window, keeps it over a lost scrape, and loses it when mended."""
    names = ("workers", "storage", "copy", "serial", "collection", "spread", "saving", "compiling")
    scenario = _runs(*names)
    for rank in scenario.world.ranks:
        rank.host = rank.run
    for run, resource in (("workers", "cpu"), ("storage", "io")):
        pressure = f"host_pressure_seconds_total{{resource={resource},tasks=some}}"
        scenario.world.devices.append(Device(run, label="host_name", counters={pressure: 0.375}))
    _faults(scenario, 0)
    scenario.after(minutes=4)
    _faults(scenario, 1)
    scenario.after(minutes=5)
    scenario.never()
    scenario.after(minutes=22)
    everything = (
        _input("workers"), _input("storage"), WORKERS, STORAGE, COPY, SERIAL, COLLECTION, SPREAD, SAVING, COMPILING,
    )  # fmt: skip
    scenario.fires(*everything)
    for rank in scenario.world.ranks:
        rank.lost = rank.rank == 1
    scenario.after(seconds=30)
    scenario.fires(*everything)
    for rank in scenario.world.ranks:
        rank.lost = False
    scenario.after(minutes=1)
    scenario.fires(*everything)
    _faults(scenario, 0)
    scenario.after(minutes=10)
    # What is judged over an hour or half of one takes longer to be forgotten.
    scenario.fires(SAVING)
    for rank in scenario.world.ranks:
        rank.finish()
    scenario.after(minutes=3)
    scenario.silent()
    return scenario


def near_misses() -> Scenario:
    """A little less than each limit is tolerated."""
    scenario = _runs("workers", "storage", "copy", "serial", "collection", "spread", "saving", "compiling")
    _faults(scenario, 0.25)
    scenario.after(minutes=32)
    scenario.never()
    return scenario


def collections() -> Scenario:
    """Ranks that collect at the same step lose one share, at steps of their own the sum."""
    names = ("together", "seldom", "often")
    scenario = _runs(*names, count=4)
    for rank in scenario.world.ranks:
        # Each collects for 2 % of its time, and steps vary: four ranks wait for the slowest a tenth of a step of 0.2 s.
        rank.counters[GC] = 0.015625
        rank.measured_wait, rank.floor = 0.03, 0.01
    usual = {"together": (0.03, 0.06), "seldom": (0.012, 0.02), "often": (0.03, 0.09)}
    # A pause takes 0.15 s, or in the last run 0.07.
    rate = {"together": 0.104, "seldom": 0.104, "often": 0.223}
    for name in names:
        for rank in _of(scenario, name):
            rank.counters[COLLECTIONS] = rate[name]
            for quantile, seconds in zip(("p50", "p95"), usual[name], strict=True):
                rank.gauges[WAIT.format(quantile)] = seconds
    scenario.after(minutes=16)
    scenario.fires(Firing("TrainingGarbageCollection", run="seldom"), Firing("TrainingGarbageCollection", run="often"))
    return scenario


def one_rank_alone() -> Scenario:
    """Slow copies, or slow work between the phases, of one rank, even of two, are its fault and not the run's."""
    scenario = _runs("copy", "serial", count=4)
    scenario.world.ranks += _runs("copies", "work").world.ranks
    scenario.world.training |= {"copies", "work"}
    phases = {"copy": "h2d", "copies": "h2d", "serial": "other", "work": "other"}
    for rank in scenario.world.ranks:
        if rank.rank == 1:
            # Of two ranks with 2 s, the mean of one step is above each limit, and so is a quarter of the way to it.
            rank.work[phases[rank.run]] += 0.3 if rank.run in ("copy", "serial") else 2
    scenario.after(minutes=13)
    scenario.fires(*(Firing("TrainingStraggler", 1, phase, "host-a", run=run) for run, phase in phases.items()))
    for rank in scenario.world.ranks:
        rank.work[phases[rank.run]] = 0.3 if rank.run in ("copies", "work") else 0.01
    scenario.after(minutes=13)
    scenario.fires(
        Firing("TrainingCopyBound", phase="h2d", run="copies"),
        Firing("TrainingHiddenSerialization", phase="other", run="work"),
    )
    return scenario


def workers_that_come_and_go() -> Scenario:
    """Workers that compute all the time are told where data is too slow for most minutes, not for one in five."""
    scenario = _runs("workers", "seldom")
    scenario.after(minutes=4)
    for _ in range(5):
        for minutes, slow in ((1, ("workers", "seldom")), (2, ("workers",)), (2, ())):
            for run in ("workers", "seldom"):
                _loaders(scenario, run, data=0.1 if run in slow else 0.02, fetch=0.3, cpu=0.8)
            scenario.after(minutes=minutes)
    scenario.fires(WORKERS)
    scenario.value('count(last_over_time(ALERTS{training_run="seldom"}[1h]))', {})
    return scenario


PLAYS: tuple[Play, ...] = (faults, near_misses, collections, one_rank_alone, workers_that_come_and_go)
