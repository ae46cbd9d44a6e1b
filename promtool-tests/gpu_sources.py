"""What each exporter of GPUs shows of one fault: the table from which plays and the one in docs/gpus.md are made.

A fault is a change of facts. A source says by which series it shows a fact, in which unit, and which verdict follows.
Of what it cannot show it says why the verdict is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

GIB = 2.0**30


def _same(value: float) -> float:
    return value


def _times(factor: float) -> Callable[[float], float]:
    return lambda value: value * factor


#: GT/s of a PCIe generation.
_TRANSFERS = {3: 8.0, 5: 32.0}


@dataclass(frozen=True)
class Shown:
    """The series that a fact is shown by."""

    series: str
    unit: Callable[[float], float] = _same
    #: A counter, and the fact its growth in a second.
    counted: bool = False


#: A GPU that is well, at work.
HEALTHY: Mapping[str, float] = {
    "utilization": 1, "memory_used": 60 * GIB, "memory_free": 20 * GIB, "clock": 1.875e9, "clock_max": 2e9,
    "generation": 5, "generation_max": 5, "width": 16, "width_max": 16, "remap_failed": 0, "capped": 0, "hot": 0,
    "uncorrected": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What is wrong with a GPU, or with all of a run, and the verdict on it."""

    text: str
    alert: str
    changes: Mapping[str, float] = field(default_factory=dict[str, float])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    #: All GPUs of a run have it, and the verdict is on the run.
    of_run: bool = False


FAULTS: Mapping[str, Fault] = {
    "hot": Fault("heat holds the clocks down", "TrainingGpuThrottled", {"hot": 0.5}),
    "capped": Fault(
        "the power limit holds the clocks down", "TrainingGpuPowerCapped", {"capped": 0.75, "clock": 1.5e9}, of_run=True
    ),
    "slow": Fault("clock below its peers'", "TrainingGpuClockLow", {"clock": 1.5e9}),
    "lost": Fault("fell off the bus", "TrainingGpuLost"),
    "ecc": Fault("uncorrectable memory errors", "TrainingGpuEccErrors", {"uncorrected": 1 / 64}),
    "remap": Fault("no spare rows left", "TrainingGpuRowRemap", {"remap_failed": 1}, {"state": "failed"}),
    "link": Fault("PCIe below its generation", "TrainingGpuPcieDegraded", {"generation": 3}, {"link": "generation"}),
    "idle": Fault("idle while its run trains", "TrainingGpuIdle", {"utilization": 0}),
    "held": Fault("held by a process of no run", "TrainingGpuHeld", {"utilization": 0}),
    "driver": Fault(
        "two versions of the driver in a run", "TrainingDriverMismatch", labels={"training_cause": "versions"},
        of_run=True,
    ),
}  # fmt: skip

_LOST = "what is gone is not exported any more"
#: Of a source whose GPUs ranks do not name.
_OF_NO_RANK = {
    "slow": "ranks do not name such a GPU", "idle": "ranks do not name such a GPU",
    "held": "ranks do not name such a GPU", "lost": _LOST + ", and there are no XIDs",
    "driver": "ranks do not name the version of this driver",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """An exporter of GPUs."""

    title: str
    #: The label of a GPU's identity, and how it is written there of its last twelve digits.
    label: str
    identity: str
    #: By fact, but those that it does not show.
    shown: Mapping[str, Shown]
    #: The reason of TrainingGpuThrottled.
    reason: str
    #: By fault, why nothing is said of it.
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Labels that each series has of its GPU's number, driver and host.
    labels: Callable[[int, str, str], str] = lambda _number, _driver, _host: ""
    #: The series of the newest XID before an error and at one, by its time. Without one it shows no XID.
    xid: Callable[[float | None], dict[str, float]] | None = None
    #: Series of a lost GPU, in place of all others.
    gone: Mapping[str, float] = field(default_factory=dict[str, float])
    #: Series of each host.
    of_host: Callable[[str, str], dict[str, float]] = lambda _driver, _host: {}
    #: Ranks name such a GPU as it does, so that its verdicts name the rank.
    names_ranks: bool = True
    #: It shows who uses a GPU.
    knows_ranks: bool = False
    #: By fault, which series or labels show it that is no fact of a GPU at work.
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def gpu(self, digits: str) -> str:
        """Return how our rules call the GPU with these last twelve digits."""
        if not self.names_ranks:
            return self.identity.format(digits)
        return f"GPU-{digits}" if self.is_amd else f"GPU-{self.identity.format(digits).removeprefix('GPU-')}"

    def of_rank(self, digits: str) -> str:
        """Return how a rank calls it: as NVML writes it, or ROCm."""
        return f"GPU-a1b2{digits}" if self.is_amd else self.gpu(digits)

    @property
    def is_amd(self) -> bool:
        """Whether its GPUs are AMD's."""
        return self.identity.endswith("8000-{}")


def _ours_xid(at: float | None) -> dict[str, float]:
    return {} if at is None else {"gpu_xid_last_timestamp_seconds{xid=79,tier=critical}": at}


def _our_driver(driver: str, host: str) -> dict[str, float]:
    return {f"gpu_driver_info{{driver={driver},host_name={host}}}": 1}


def _dcgm_xid(name: str) -> Callable[[float | None], dict[str, float]]:
    """Return the gauge of the newest code, which labels name as well: each code is a series of its own."""
    none, fell = "err_code=0,err_msg=No Error", "err_code=79,err_msg=GPU has fallen off the bus"
    return lambda at: {f"{name}{{{none}}}": 0} if at is None else {f"{name}{{{fell}}}": 79}


def _dcgm_labels(host_label: str, driver_label: str) -> Callable[[int, str, str], str]:
    return lambda number, driver, host: (
        f"gpu={number},modelName=NVIDIA H100 80GB HBM3,{host_label}={host},{driver_label}={driver}"
    )


_UUID = "GPU-00000000-0000-0000-0000-{}"
#: The node exporter's, whatever the vendor.
_OURS = {
    "utilization": Shown("gpu_utilization_ratio"), "memory_used": Shown("gpu_memory_used_bytes"),
    "memory_free": Shown("gpu_memory_free_bytes"), "clock": Shown("gpu_clock_hertz{clock=sm}"),
    "clock_max": Shown("gpu_clock_max_hertz{clock=sm}"), "generation": Shown("gpu_pcie_link_generation"),
    "generation_max": Shown("gpu_pcie_link_generation_max"), "width": Shown("gpu_pcie_link_width"),
    "width_max": Shown("gpu_pcie_link_width_max"), "remap_failed": Shown("gpu_row_remap_failed"),
    "capped": Shown("gpu_clock_event_seconds_total{reason=sw_power_cap}", counted=True),
    "hot": Shown("gpu_clock_event_seconds_total{reason=hw_thermal}", counted=True),
    "uncorrected": Shown("gpu_ecc_volatile_errors_total{severity=uncorrected}", counted=True),
}  # fmt: skip
_DCGM_SHARED = {
    "generation": Shown("DCGM_FI_DEV_PCIE_LINK_GEN"), "generation_max": Shown("DCGM_FI_DEV_PCIE_MAX_LINK_GEN"),
    "width": Shown("DCGM_FI_DEV_PCIE_LINK_WIDTH"), "width_max": Shown("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"),
    "uncorrected": Shown("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", counted=True),
}  # fmt: skip
_MHZ, _MIB, _NS, _PERCENT = _times(1e-6), _times(2.0**-20), _times(1e9), _times(100)
_REPORTED = "XID 79 (TrainingGpuXidCritical): " + _LOST

SOURCES: Mapping[str, Source] = {
    "laggard": Source(
        "laggard-exporter (NVIDIA)", "uuid", _UUID, _OURS, "hw_thermal", xid=_ours_xid, knows_ranks=True,
        gone={"gpu_up": 0}, of_host=_our_driver, also={"lost": ("gpu_up",), "driver": ("gpu_driver_info",)},
    ),
    "laggard-amd": Source(
        "laggard-exporter (AMD)", "uuid", "GPU-a1b2{}", _OURS, "hw_thermal", knows_ranks=True,
        gone={"gpu_up": 0}, of_host=_our_driver, also={"lost": ("gpu_up",), "driver": ("gpu_driver_info",)},
    ),
    "dcgm-old": Source(
        "dcgm-exporter, old names", "UUID", _UUID,
        {
            **_DCGM_SHARED,
            "utilization": Shown("DCGM_FI_DEV_GPU_UTIL", _PERCENT), "memory_used": Shown("DCGM_FI_DEV_FB_USED", _MIB),
            "memory_free": Shown("DCGM_FI_DEV_FB_FREE", _MIB), "clock": Shown("DCGM_FI_DEV_SM_CLOCK", _MHZ),
            "clock_max": Shown("DCGM_FI_DEV_MAX_SM_CLOCK", _MHZ),
            "remap_failed": Shown("DCGM_FI_DEV_ROW_REMAP_FAILURE"),
            "capped": Shown("DCGM_FI_DEV_POWER_VIOLATION", _NS, counted=True),
            "hot": Shown("DCGM_FI_DEV_THERMAL_VIOLATION", _NS, counted=True),
        },
        "thermal", {"lost": _REPORTED}, _dcgm_labels("Hostname", "DCGM_FI_DRIVER_VERSION"),
        _dcgm_xid("DCGM_FI_DEV_XID_ERRORS"), also={"driver": ("DCGM_FI_DRIVER_VERSION",)},
    ),
    "dcgm-new": Source(
        "dcgm-exporter, new names", "UUID", _UUID,
        {
            **_DCGM_SHARED,
            "utilization": Shown("DCGM_FI_DEV_GPU_UTIL_RATIO"), "memory_used": Shown("DCGM_FI_DEV_FB_USED_BYTES"),
            "memory_free": Shown("DCGM_FI_DEV_FB_FREE_BYTES"), "clock": Shown("DCGM_FI_DEV_SM_CLOCK_HERTZ"),
            "clock_max": Shown("DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ"),
            "remap_failed": Shown("DCGM_FI_DEV_ROW_REMAP_FAILED"),
            "capped": Shown("DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", counted=True),
            "hot": Shown("DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", counted=True),
        },
        "thermal", {"lost": _REPORTED}, _dcgm_labels("hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION"),
        # The counter of a code begins with its first error.
        lambda at: {} if at is None else {"DCGM_EXP_XID_ERRORS_TOTAL{xid=79}": 1},
        also={"driver": ("DCGM_FI_SYSTEM_DRIVER_VERSION",)},
    ),
    "nvidia-smi": Source(
        "nvidia_gpu_exporter", "uuid", "00000000-0000-0000-0000-{}",
        {
            "utilization": Shown("nvidia_smi_utilization_gpu_ratio"),
            "memory_used": Shown("nvidia_smi_memory_used_bytes"), "memory_free": Shown("nvidia_smi_memory_free_bytes"),
            "clock": Shown("nvidia_smi_clocks_current_sm_clock_hz"),
            "clock_max": Shown("nvidia_smi_clocks_max_sm_clock_hz"),
            "generation": Shown("nvidia_smi_pcie_link_gen_current"),
            "generation_max": Shown("nvidia_smi_pcie_link_gen_max"),
            "width": Shown("nvidia_smi_pcie_link_width_current"), "width_max": Shown("nvidia_smi_pcie_link_width_max"),
            "remap_failed": Shown("nvidia_smi_remapped_rows_failure"),
            "capped": Shown("nvidia_smi_clocks_event_reasons_counters_sw_power_cap_seconds", counted=True),
            "hot": Shown("nvidia_smi_clocks_event_reasons_counters_hw_thermal_slowdown_seconds", counted=True),
            "uncorrected": Shown("nvidia_smi_ecc_errors_uncorrected_volatile_total", counted=True),
        },
        "hw_thermal",
        {"lost": _REPORTED + "; with its NVML backend alone", "driver": "it names no host; a rank says its own"},
        xid=lambda at: {} if at is None else {"nvidia_smi_xid_last_timestamp_seconds{xid=79}": at},
    ),
    "amd": Source(
        "device-metrics-exporter (AMD), with GPU_UUID", "gpu_uuid", "00ff74a1-0000-1000-8000-{}",
        {
            "utilization": Shown("gpu_gfx_activity", _PERCENT), "memory_used": Shown("gpu_used_vram", _MIB),
            "memory_free": Shown("gpu_free_vram", _MIB), "clock": Shown("gpu_clock{clock_type=system}", _MHZ),
            "clock_max": Shown("gpu_max_clock{clock_type=system}", _MHZ),
            "generation": Shown("pcie_speed", lambda generation: _TRANSFERS[int(generation)]),
            "generation_max": Shown("pcie_max_speed", lambda generation: _TRANSFERS[int(generation)]),
            "capped": Shown("gpu_violation_ppt_residency_percentage", _PERCENT),
            "hot": Shown("gpu_violation_hbm_thermal_residency_percentage", _PERCENT),
            "uncorrected": Shown("gpu_ecc_uncorrect_total", counted=True),
        },
        "hw_thermal",
        {
            "lost": _LOST + ", and there are no XIDs", "remap": "it exports no retired pages",
            "driver": "it names no version of the driver, and neither do ranks on ROCm",
        },
        lambda number, _driver, host: f"gpu_id={number},hostname={host},card_model=MI300X",
    ),
    "all-smi": Source(
        "all-smi (NVIDIA), optional", "gpu_uuid", _UUID,
        {
            "utilization": Shown("all_smi_gpu_utilization", _PERCENT),
            "memory_used": Shown("all_smi_gpu_memory_used_bytes"),
            # What is free is the rest.
            "memory_free": Shown("all_smi_gpu_memory_total_bytes", lambda free: free + HEALTHY["memory_used"]),
            "clock": Shown("all_smi_gpu_frequency_mhz", _MHZ),
            "clock_max": Shown("all_smi_gpu_clock_graphics_max_mhz", _MHZ),
            "generation": Shown("all_smi_gpu_pcie_gen_current"), "width": Shown("all_smi_gpu_pcie_width_current"),
        },
        "",
        {
            "hot": "it counts no time", "capped": "it counts no time", "lost": _LOST + ", and there are no XIDs",
            "ecc": "it counts no errors", "remap": "it says nothing of rows",
            "link": "it does not say what the link can", "driver": "a rank says its own",
        },
    ),
    "intel": Source(
        "XPU Manager (Intel), optional", "uuid", "01000000-0000-0000-0000-{}",
        {
            "utilization": Shown("xpum_engine_ratio"), "memory_used": Shown("xpum_memory_used_bytes"),
            "clock": Shown("xpum_frequency_mhz{location=gpu,type=actual}", _MHZ),
            "uncorrected": Shown("xpum_cache_errors_total{type=uncorrectable}", counted=True),
        },
        "",
        {
            **_OF_NO_RANK, "hot": "it counts no time", "capped": "it counts no time",
            "remap": "it says nothing of rows", "link": "it says nothing of the link",
        },
        lambda _number, _driver, _host: "dev_name=Intel(R) Data Center GPU Max 1550,pci_bdf=0000:4d:00.0",
        names_ranks=False,
    ),
    "gaudi": Source(
        "Gaudi's metric exporter, optional", "UUID", "01P4-HL2080A0-15-TNBS67-20-{}",
        {
            "utilization": Shown("habanalabs_utilization", _PERCENT),
            "memory_used": Shown("habanalabs_memory_used_bytes"), "memory_free": Shown("habanalabs_memory_free_bytes"),
            "clock": Shown("habanalabs_clock_soc_mhz", _MHZ), "clock_max": Shown("habanalabs_clock_soc_max_mhz", _MHZ),
            "width": Shown("habanalabs_pci_link_width"),
            "uncorrected": Shown("habanalabs_pending_rows_with_double_bit_ecc_errors", counted=True),
        },
        "",
        {
            **_OF_NO_RANK, "hot": "it counts no time", "capped": "it counts no time",
            "remap": "it says that rows wait (`habanalabs_pending_rows_state`), not that none are left",
            "link": "it does not say what the link can",
        },
        lambda number, driver, _host: f"Serial=AM{number:08},device=AM{number:08},id={number},driver={driver}",
        names_ranks=False,
    ),
}  # fmt: skip
