"""What hosts and the way to Prometheus add to a run: drivers, GPUs that it does not use, series too many."""

from __future__ import annotations

import numpy as np

from lab.evaluation.model.faults import Held, MoreSeries, OtherDriver, OtherLibrary
from lab.evaluation.model.job import GIB, Job
from lab.evaluation.model.rows import Rows, add

_DRIVERS = ("570.124.06", "570.86.15")
_CAPACITY = 80 * GIB
#: A name that no rule asks for by itself.
EXCESS = "training_step_duration_seconds_bucket"
#: A label of series that belong to the GPU beside that of a rank.
SPARE = "spare"


def own_rows(job: Job, ranks: int, time: float) -> Rows:
    """Return what the ranks say of their driver, and the series of rank 0 that nobody needs."""
    rows: Rows = {}
    others = np.zeros(ranks, dtype=bool)
    for fault in job.of(OtherDriver):
        others[list(fault.ranks)] |= fault.at(time)
    for other, version in enumerate(_DRIVERS) if job.gpus else ():
        there = np.where(others == bool(other), 1.0, np.nan)
        add(rows, ranks, "training_run_info", there, training_driver_version=version)
    for fault in job.of(MoreSeries):
        there = np.where((np.arange(ranks) == 0) & fault.at(time), 1.0, np.nan)
        for number in range(fault.count):
            add(rows, ranks, EXCESS, there, pod=str(number))
    return rows


def exported_rows(job: Job, ranks: int, time: float) -> Rows:
    """Return what node exporters say of their library, and of GPUs that no rank uses."""
    rows: Rows = {}
    for fault in job.of(OtherLibrary):
        refused = np.zeros(ranks)
        refused[list(fault.ranks)] = fault.at(time)
        add(rows, ranks, "laggard_exporter_nvml_status", refused, host_name="", status="version_mismatch")
    for fault in job.of(Held):
        there = np.where(np.arange(ranks) == fault.rank, 1.0, np.nan)
        share, busy = (fault.share, fault.busy) if fault.at(time) else (0.0, 0.0)
        add(rows, ranks, "gpu_memory_used_bytes", there * share * _CAPACITY, **{SPARE: "yes"})
        add(rows, ranks, "gpu_memory_free_bytes", there * (1 - share) * _CAPACITY, **{SPARE: "yes"})
        add(rows, ranks, "gpu_utilization_ratio", there * busy, **{SPARE: "yes"})
    return rows
