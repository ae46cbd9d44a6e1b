"""What node exporters say of the GPUs of a run, one for each rank."""

from __future__ import annotations

import numpy as np

from lab.evaluation.model.blocks import Array
from lab.evaluation.model.faults import GpuFault, Idle, Throttle
from lab.evaluation.model.job import Gpus, Job
from lab.evaluation.model.rows import Rows, add
from lab.evaluation.model.steps import Moment
from laggard.shared.phases import Phase

_MAXIMUM_HERTZ = 1.98e9
_COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_REASONS = ("sw_power_cap", "hw_thermal", "sw_thermal", "hw_power_brake")
_CRITICAL, _CONTAINED, _APPLICATION = "79", "94", "31"

#: Kind of fault -> series that it sets to its size from its beginning on, or adds its size to each minute.
FAULTS: dict[str, tuple[str, bool]] = {
    "lost": ("gpu_up", False),  # its size is 0
    "ecc": ("gpu_ecc_volatile_errors_total/uncorrected", True),
    "corrected": ("gpu_ecc_volatile_errors_total/corrected", True),
    "sram": ("gpu_ecc_sram_threshold_exceeded", False),
    "remap_failed": ("gpu_row_remap_failed", False),
    "remap_pending": ("gpu_row_remap_pending", False),
    "width": ("gpu_pcie_link_width", False),
    "generation": ("gpu_pcie_link_generation", False),
    "replays": ("gpu_pcie_replays_total", True),
    "links": ("gpu_nvlink_links/inactive", False),
    "recoveries": ("gpu_nvlink_errors_total/recovery", True),
    "link_replays": ("gpu_nvlink_errors_total/replay", True),
    "fabric": ("gpu_fabric_health/bandwidth_degraded", False),
    "reset": ("gpu_recovery_action/reset", False),
    f"xid_{_CRITICAL}": (f"gpu_xid_last_timestamp_seconds/{_CRITICAL}", False),
    f"xid_{_CONTAINED}": (f"gpu_xid_last_timestamp_seconds/{_CONTAINED}", False),
    f"xid_{_APPLICATION}": (f"gpu_xid_last_timestamp_seconds/{_APPLICATION}", False),
}
#: Which label the part behind the stroke belongs to.
_LABELS = {
    "gpu_ecc_volatile_errors_total": "severity",
    "gpu_nvlink_links": "state",
    "gpu_nvlink_errors_total": "error",
    "gpu_fabric_health": "condition",
    "gpu_recovery_action": "action",
    "gpu_xid_last_timestamp_seconds": "xid",
}
_TIERS = {_CRITICAL: "critical", _CONTAINED: "warning", _APPLICATION: "application"}
_HEALTHY = {
    "gpu_up": 1.0,
    "gpu_ecc_volatile_errors_total/uncorrected": 0.0,
    "gpu_ecc_volatile_errors_total/corrected": 0.0,
    "gpu_ecc_sram_threshold_exceeded": 0.0,
    "gpu_row_remap_failed": 0.0,
    "gpu_row_remap_pending": 0.0,
    "gpu_pcie_link_width": 16.0,
    "gpu_pcie_link_width_max": 16.0,
    "gpu_pcie_link_generation": 5.0,
    "gpu_pcie_link_generation_max": 5.0,
    "gpu_pcie_replays_total": 0.0,
    "gpu_nvlink_links/active": 18.0,
    "gpu_nvlink_links/inactive": 0.0,
    "gpu_nvlink_errors_total/recovery": 0.0,
    "gpu_nvlink_errors_total/replay": 0.0,
    "gpu_fabric_health/bandwidth_degraded": 0.0,
    "gpu_recovery_action/none": 1.0,
    "gpu_recovery_action/reset": 0.0,
}


class Devices:
    """The GPUs of one incarnation of a job. Ask in the order of time."""

    def __init__(self, job: Job, gpus: Gpus, ranks: int, start: float, random: np.random.Generator) -> None:
        self._job, self._gpus, self._ranks, self._random = job, gpus, ranks, random
        self._warm = 62 + 6 * random.standard_normal(ranks)
        self._clock = gpus.clock + 0.01 * random.standard_normal(ranks)
        self._capped = np.clip(gpus.capped + 0.1 * random.standard_normal(ranks), 0, 1)
        self._held = {reason: np.zeros(ranks) for reason in _REASONS}
        self._then, self._computed = start, np.zeros(ranks)
        self._share = np.zeros(ranks)

    def rows(self, time: float, moment: Moment, epoch: float) -> Rows:
        """Return the series of all GPUs."""
        rows: Rows = {}
        ranks, gpus = self._ranks, self._gpus
        self._advance(time, moment)
        found: dict[str, Array] = {name: np.full(ranks, value) for name, value in _HEALTHY.items()}
        self._break(found, time, epoch)
        busy = self._share > 0.05  # noqa: PLR2004 - an idle GPU lowers its link
        found["gpu_pcie_link_generation"] = np.where(busy, found["gpu_pcie_link_generation"], 1.0)
        for series, values in found.items():
            name, _, value = series.partition("/")
            labels = {_LABELS[name]: value} if value else {}
            if name == "gpu_xid_last_timestamp_seconds":
                labels["tier"] = _TIERS[value]
            add(rows, ranks, name, values, **labels)
        clock, heat = self._clock.copy(), self._warm.copy()
        for throttle in self._job.of(Throttle):
            if throttle.at(time):
                clock[list(throttle.ranks)] *= throttle.clock
                heat[list(throttle.ranks)] += throttle.celsius
        ripple = 1 + 0.01 * self._random.standard_normal(ranks)
        add(rows, ranks, "gpu_info", 1, name=gpus.name)
        add(rows, ranks, "gpu_workload_info", 1)
        add(rows, ranks, "gpu_clock_hertz", _MAXIMUM_HERTZ * clock * ripple, clock="sm")
        add(rows, ranks, "gpu_clock_max_hertz", _MAXIMUM_HERTZ, clock="sm")
        add(rows, ranks, "gpu_temperature_celsius", heat + self._random.standard_normal(ranks), sensor="gpu")
        add(rows, ranks, "gpu_utilization_ratio", np.clip(1.05 * self._share, 0, 1))
        add(rows, ranks, "gpu_sm_activity_ratio", gpus.sm * self._share * ripple)
        add(rows, ranks, "gpu_tensor_activity_ratio", gpus.tensor * self._share * ripple)
        for reason, seconds in self._held.items():
            add(rows, ranks, "gpu_clock_event_seconds_total", seconds.copy(), reason=reason)
        # Of one that is lost nothing else is known.
        known = ("gpu_up", "gpu_info", "gpu_workload_info", "gpu_xid_last_timestamp_seconds")
        lost = found["gpu_up"] == 0
        return {key: values if key[0] in known else np.where(lost, np.nan, values) for key, values in rows.items()}

    def _advance(self, time: float, moment: Moment) -> None:
        """Count for how long clocks were held down, and which share of the time the ranks computed."""
        passed = time - self._then
        computed = moment.phase_seconds[list(_COMPUTE)].sum(axis=0)
        if passed > 0:
            # Of the step that goes on nothing is counted yet, so the share is smoothed.
            share = np.clip((computed - self._computed) / passed, 0, 1)
            for idle in self._job.of(Idle):
                if idle.at(time):
                    share[list(idle.ranks) if idle.ranks is not None else slice(None)] *= idle.left
            self._share = 0.7 * self._share + 0.3 * share
            self._then, self._computed = time, computed
            self._held["sw_power_cap"] += self._capped * self._share * passed
            for throttle in self._job.of(Throttle):
                if throttle.at(time):
                    self._held[throttle.reason][list(throttle.ranks)] += throttle.told * passed

    def _break(self, found: dict[str, Array], time: float, epoch: float) -> None:
        """Let the faults that have begun show."""
        for fault in self._job.of(GpuFault):
            series, grows = FAULTS[fault.kind]
            if "xid" in series:
                found.setdefault(series, np.full(self._ranks, np.nan))
            if time < fault.begin or fault.rank >= self._ranks:
                continue
            if "xid" in series:
                found[series][fault.rank] = epoch + fault.begin
            elif grows:
                found[series][fault.rank] += fault.times(time, fault.size)
            elif fault.at(time):
                found[series][fault.rank] = fault.size
            if fault.kind == "reset" and fault.at(time):
                found["gpu_recovery_action/none"][fault.rank] = 0.0
            if fault.kind == "links" and fault.at(time):
                found["gpu_nvlink_links/active"][fault.rank] -= fault.size
