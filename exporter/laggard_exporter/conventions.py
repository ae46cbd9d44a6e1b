"""Every metric of the node exporter, as data: name, type, help and labels.

Rank metrics come from the contract in :mod:`laggard.conventions`. GPU metrics carry the label ``uuid``; static
facts stand in ``gpu_info`` alone. What a GPU or a driver can not tell is absent, never 0. The help of a GPU metric
names its source in NVML.
"""

from __future__ import annotations

from laggard.conventions import PROCESS_METRICS, Attribute, prometheus_label, prometheus_name
from laggard_exporter.host.conventions import HOST_FAMILIES
from laggard_exporter.ranks.conventions import RANK_FAMILIES
from laggard_exporter.samples import Family

PREFIX = "laggard_exporter"

# The exporter itself.
BUILD_INFO = Family(f"{PREFIX}_build_info", "gauge", "1, with the version of the exporter.", ("version",))
COLLECTOR_SUCCESS = Family(
    f"{PREFIX}_collector_success", "gauge", "1 when the collector's newest run succeeded.", ("collector",)
)
COLLECTOR_DURATION = Family(
    f"{PREFIX}_collector_duration_seconds", "gauge", "Duration of the collector's newest run.", ("collector",)
)
COLLECTOR_LAST_SUCCESS = Family(
    f"{PREFIX}_collector_last_success_timestamp_seconds",
    "gauge",
    "Unix time at which the collector last succeeded; absent before it first did.",
    ("collector",),
)
COLLECTOR_SUPPORTED = Family(
    f"{PREFIX}_collector_supported",
    "gauge",
    "0 when the node has not what the collector reads, for example no InfiniBand; absent while the collector fails.",
    ("collector",),
)
WEB_CONFIGURATION_VALID = Family(
    f"{PREFIX}_web_configuration_valid",
    "gauge",
    "0 when the newest web configuration file can not be used and the one before stays in force; absent without one.",
)
SELF_FAMILIES = (
    BUILD_INFO,
    COLLECTOR_SUCCESS,
    COLLECTOR_DURATION,
    COLLECTOR_LAST_SUCCESS,
    COLLECTOR_SUPPORTED,
    WEB_CONFIGURATION_VALID,
)

# Collector state: the ranks on this node, from their state files.
STATE_DIRECTORY_EXISTS = Family(
    f"{PREFIX}_state_directory_exists",
    "gauge",
    "1 when the folder of state files exists; the first rank on the node makes it.",
)
STATE_FILES = Family(
    f"{PREFIX}_state_files",
    "gauge",
    "State files by what became of them in this scrape: exported, superseded by a newer process of the same run and "
    "rank, expired (its process died long ago), rejected (no usable state file), no_run (run not known yet).",
    ("result",),
)
STATE_FILE_RESULTS = ("exported", "superseded", "expired", "rejected", "no_run")

PROCESS = {
    metric: Family(
        prometheus_name(metric),
        "counter" if metric.kind == "counter" else "gauge",
        metric.description,
        tuple(prometheus_label(name) for name in (Attribute.RUN, Attribute.RANK, *metric.attributes)),
    )
    for metric in PROCESS_METRICS
}
STATE_FAMILIES = (STATE_DIRECTORY_EXISTS, STATE_FILES, *PROCESS.values())

# Collector nvml: the session with the library.
NVML_AVAILABLE = Family(
    f"{PREFIX}_nvml_available", "gauge", "1 when NVML answers; 0 is normal on a node without NVIDIA GPUs."
)
NVML_STATUS = Family(f"{PREFIX}_nvml_status", "gauge", "1 for the state of the session with NVML.", ("status",))
NVML_ERRORS = Family(
    f"{PREFIX}_nvml_errors_total",
    "counter",
    "Calls of an NVML function that failed; what a GPU or a driver does not support is no failure.",
    ("function",),
)
NVML_VALUES_REJECTED = Family(
    f"{PREFIX}_nvml_values_rejected_total",
    "counter",
    "Values from NVML that can not be true and are not exported.",
    ("metric",),
)

# Collector nvml: the GPUs.
UUID = "uuid"
GPU_DRIVER_INFO = Family(
    "gpu_driver_info",
    "gauge",
    "1, with the versions of the driver, of NVML and of CUDA. "
    "NVML: nvmlSystemGetDriverVersion, nvmlSystemGetNVMLVersion, nvmlSystemGetCudaDriverVersion_v2.",
    ("driver", "nvml", "cuda"),
)
GPU_DEVICES = Family("gpu_devices", "gauge", "GPUs that the source counts. NVML: nvmlDeviceGetCount_v2.", ("source",))
GPU_INFO = Family(
    "gpu_info",
    "gauge",
    "1, with the facts of a GPU, kept while the GPU is lost. NVML: nvmlDeviceGetUUID, nvmlDeviceGetName, "
    "nvmlDeviceGetPciInfo, nvmlDeviceGetSerial, nvmlDeviceGetVbiosVersion, nvmlDeviceGetArchitecture, "
    "nvmlDeviceGetMemoryAffinity.",
    (UUID, "index", "name", "pci_bus_id", "serial", "vbios", "arch", "numa_node"),
)
GPU_UP = Family(
    "gpu_up",
    "gauge",
    "1 when NVML answers for the GPU; 0 when the GPU is lost, answers nothing or left the enumeration. "
    "NVML: all calls for the GPU.",
    (UUID,),
)
GPU_UTILIZATION = Family(
    "gpu_utilization_ratio",
    "gauge",
    "Share of the last sample period in which a kernel ran. NVML: nvmlDeviceGetUtilizationRates gpu.",
    (UUID,),
)
GPU_MEMORY_COPY_UTILIZATION = Family(
    "gpu_memory_copy_utilization_ratio",
    "gauge",
    "Share of the last sample period in which device memory was read or written. "
    "NVML: nvmlDeviceGetUtilizationRates memory.",
    (UUID,),
)
GPU_MEMORY_CAPACITY = Family(
    "gpu_memory_capacity_bytes", "gauge", "Device memory, all of it. NVML: nvmlDeviceGetMemoryInfo_v2 total.", (UUID,)
)
GPU_MEMORY_USED = Family(
    "gpu_memory_used_bytes",
    "gauge",
    "Device memory in use, without what is reserved. NVML: nvmlDeviceGetMemoryInfo_v2 used.",
    (UUID,),
)
GPU_MEMORY_FREE = Family(
    "gpu_memory_free_bytes", "gauge", "Device memory not in use. NVML: nvmlDeviceGetMemoryInfo_v2 free.", (UUID,)
)
GPU_MEMORY_RESERVED = Family(
    "gpu_memory_reserved_bytes",
    "gauge",
    "Device memory that the driver and the firmware keep for themselves. NVML: nvmlDeviceGetMemoryInfo_v2 reserved.",
    (UUID,),
)
GPU_POWER = Family(
    "gpu_power_watts",
    "gauge",
    "Power that the GPU draws. NVML: field 186 POWER_INSTANT, on drivers without it nvmlDeviceGetPowerUsage.",
    (UUID,),
)
GPU_POWER_LIMIT = Family(
    "gpu_power_limit_watts", "gauge", "Power limit in force. NVML: nvmlDeviceGetEnforcedPowerLimit.", (UUID,)
)
GPU_ENERGY = Family(
    "gpu_energy_joules_total",
    "counter",
    "Energy used since the driver was loaded. NVML: field 83 TOTAL_ENERGY_CONSUMPTION.",
    (UUID,),
)
GPU_TEMPERATURE = Family(
    "gpu_temperature_celsius",
    "gauge",
    "Temperature at a sensor. NVML: gpu nvmlDeviceGetTemperatureV, on drivers without it nvmlDeviceGetTemperature; "
    "memory field 82 MEMORY_TEMP.",
    (UUID, "sensor"),
)
GPU_CLOCK = Family("gpu_clock_hertz", "gauge", "Clock of a domain. NVML: nvmlDeviceGetClockInfo.", (UUID, "clock"))
GPU_CLOCK_MAX = Family(
    "gpu_clock_max_hertz", "gauge", "Highest clock of a domain. NVML: nvmlDeviceGetMaxClockInfo.", (UUID, "clock")
)
GPU_PERFORMANCE_STATE = Family(
    "gpu_performance_state",
    "gauge",
    "Performance state, 0 (fastest) to 15. NVML: nvmlDeviceGetPerformanceState.",
    (UUID,),
)
GPU_CLOCK_EVENT_ACTIVE = Family(
    "gpu_clock_event_active",
    "gauge",
    "1 while the reason holds the clocks down. NVML: nvmlDeviceGetCurrentClocksEventReasons.",
    (UUID, "reason"),
)
GPU_CLOCK_EVENT_SECONDS = Family(
    "gpu_clock_event_seconds_total",
    "counter",
    "Time for which the reason held the clocks down. NVML: fields 74 PERF_POLICY_POWER, 76 PERF_POLICY_SYNC_BOOST, "
    "77 PERF_POLICY_BOARD_LIMIT, 78 PERF_POLICY_LOW_UTILIZATION, 79 PERF_POLICY_RELIABILITY; from R580 "
    "269 CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 270 CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, "
    "271 CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, before it 75 PERF_POLICY_THERMAL as reason thermal.",
    (UUID, "reason"),
)
GPU_FAMILIES = (
    GPU_DRIVER_INFO,
    GPU_DEVICES,
    GPU_INFO,
    GPU_UP,
    GPU_UTILIZATION,
    GPU_MEMORY_COPY_UTILIZATION,
    GPU_MEMORY_CAPACITY,
    GPU_MEMORY_USED,
    GPU_MEMORY_FREE,
    GPU_MEMORY_RESERVED,
    GPU_POWER,
    GPU_POWER_LIMIT,
    GPU_ENERGY,
    GPU_TEMPERATURE,
    GPU_CLOCK,
    GPU_CLOCK_MAX,
    GPU_PERFORMANCE_STATE,
    GPU_CLOCK_EVENT_ACTIVE,
    GPU_CLOCK_EVENT_SECONDS,
)
NVML_FAMILIES = (NVML_AVAILABLE, NVML_STATUS, NVML_ERRORS, NVML_VALUES_REJECTED, *GPU_FAMILIES)

#: Every metric that the exporter may emit.
FAMILIES = (*SELF_FAMILIES, *STATE_FAMILIES, *NVML_FAMILIES, *HOST_FAMILIES, *RANK_FAMILIES)
