"""The metrics about GPUs, as data. The help of each names its source in NVML; docs/gpus.md has AMD's.

Names follow the naming rules of Prometheus: base units, ``_total`` on what accumulates only, no word ``total`` else.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from laggard_exporter.conventions import PREFIX
from laggard_exporter.host.families import HOST
from laggard_exporter.samples import Family

UUID = "uuid"


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"gpu_{name}", "gauge", text, (UUID, *labels))


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(f"gpu_{name}_total", "counter", text, (UUID, *labels))


# The node.
GPU_DRIVER_INFO = Family(
    "gpu_driver_info",
    "gauge",
    "1, with the versions of the driver, of NVML and of CUDA. "
    "NVML: nvmlSystemGetDriverVersion, nvmlSystemGetNVMLVersion, nvmlSystemGetCudaDriverVersion_v2.",
    ("driver", "nvml", "cuda", HOST),
)
GPU_DEVICES = Family(
    "gpu_devices",
    "gauge",
    "GPUs that the source counts; fewer in nvml than in pci means that the driver lost some, and so for AMD. "
    "NVML: nvmlDeviceGetCount_v2; source amd_smi: amdsmi_get_processor_handles; pci and pci_amd: display controllers "
    "of NVIDIA and accelerators of AMD in sysfs.",
    ("source",),
)

# Identity and presence.
GPU_INFO = _gauge(
    "info",
    "1, with the facts of a GPU, kept while the GPU is lost. NVML: nvmlDeviceGetUUID, nvmlDeviceGetName, "
    "nvmlDeviceGetPciInfo, nvmlDeviceGetSerial, nvmlDeviceGetVbiosVersion, nvmlDeviceGetArchitecture, "
    "nvmlDeviceGetMemoryAffinity.",
    "index",
    "name",
    "pci_bus_id",
    "serial",
    "vbios",
    "arch",
    "numa_node",
)
GPU_UP = _gauge(
    "up",
    "1 when NVML answers for the GPU; 0 when the GPU is lost, hangs, answers nothing or left the enumeration. "
    "NVML: all calls for the GPU.",
)
GPU_RECOVERY_ACTION = _gauge(
    "recovery_action",
    "1 for what the driver says must be done before the GPU works again. NVML: field 230 GET_GPU_RECOVERY_ACTION.",
    "action",
)

# Activity.
GPU_UTILIZATION = _gauge(
    "utilization_ratio",
    "Share of the last sample period in which a kernel ran. NVML: nvmlDeviceGetUtilizationRates gpu.",
)
GPU_MEMORY_COPY_UTILIZATION = _gauge(
    "memory_copy_utilization_ratio",
    "Share of the last sample period in which device memory was read or written. "
    "NVML: nvmlDeviceGetUtilizationRates memory.",
)
GPU_ENCODER_UTILIZATION = _gauge(
    "encoder_utilization_ratio", "Use of the video encoder. NVML: nvmlDeviceGetEncoderUtilization."
)
GPU_DECODER_UTILIZATION = _gauge(
    "decoder_utilization_ratio", "Use of the video decoder. NVML: nvmlDeviceGetDecoderUtilization."
)
GPU_JPEG_UTILIZATION = _gauge("jpeg_utilization_ratio", "Use of the JPEG engine. NVML: nvmlDeviceGetJpgUtilization.")
GPU_OFA_UTILIZATION = _gauge(
    "ofa_utilization_ratio", "Use of the optical flow accelerator. NVML: nvmlDeviceGetOfaUtilization."
)
_GPM = "over the time since the scrape before. NVML: nvmlGpmMetricsGet"
GPU_GRAPHICS_ACTIVITY = _gauge(
    "graphics_activity_ratio", f"Share of the time in which any engine computed, {_GPM} 1 GRAPHICS_UTIL."
)
GPU_SM_ACTIVITY = _gauge(
    "sm_activity_ratio", f"Share of the streaming multiprocessors that were busy, {_GPM} 2 SM_UTIL."
)
GPU_SM_OCCUPANCY = _gauge(
    "sm_occupancy_ratio", f"Active warps as a share of the most that there may be, {_GPM} 3 SM_OCCUPANCY."
)
GPU_TENSOR_ACTIVITY = _gauge(
    "tensor_activity_ratio", f"Share of the time in which tensor cores worked, {_GPM} 5 ANY_TENSOR_UTIL."
)
GPU_DRAM_BANDWIDTH = _gauge(
    "dram_bandwidth_utilization_ratio", f"Used share of the memory bandwidth, {_GPM} 10 DRAM_BW_UTIL."
)
GPU_PIPE_ACTIVITY = _gauge(
    "pipe_activity_ratio",
    f"Share of the time in which a kind of arithmetic unit worked, {_GPM} 4 INTEGER_UTIL, 6 DFMA_TENSOR_UTIL, "
    "7 HMMA_TENSOR_UTIL, 8 DMMA_TENSOR_UTIL, 9 IMMA_TENSOR_UTIL, 11 FP64_UTIL, 12 FP32_UTIL, 13 FP16_UTIL.",
    "pipe",
)
GPU_SM_CYCLES = _counter(
    "sm_cycles", "Cycles of all streaming multiprocessors. NVML: nvmlGpmMetricsGet 248 SM_CYCLES_ELAPSED."
)
GPU_SM_ACTIVE_CYCLES = _counter(
    "sm_active_cycles", "Cycles in which they were busy. NVML: nvmlGpmMetricsGet 249 SM_CYCLES_ACTIVE."
)
GPU_TENSOR_ACTIVE_CYCLES = _counter(
    "tensor_active_cycles", "Cycles in which their tensor cores worked. NVML: nvmlGpmMetricsGet 250 MMA_CYCLES_ACTIVE."
)

# Memory.
_MEMORY = "NVML: nvmlDeviceGetMemoryInfo_v2"
GPU_MEMORY_CAPACITY = _gauge(
    "memory_capacity_bytes",
    f"Device memory, all of it. {_MEMORY} total, on drivers without it nvmlDeviceGetMemoryInfo.",
)
GPU_MEMORY_USED = _gauge(
    "memory_used_bytes",
    f"Device memory in use, without what is reserved. {_MEMORY} used, on drivers without it nvmlDeviceGetMemoryInfo, "
    "whose figure includes what is reserved.",
)
GPU_MEMORY_FREE = _gauge(
    "memory_free_bytes", f"Device memory not in use. {_MEMORY} free, on drivers without it nvmlDeviceGetMemoryInfo."
)
GPU_MEMORY_RESERVED = _gauge(
    "memory_reserved_bytes", f"Device memory that the driver and the firmware keep for themselves. {_MEMORY} reserved."
)
GPU_BAR1_MEMORY_CAPACITY = _gauge(
    "bar1_memory_capacity_bytes",
    "Address space for mapping device memory. NVML: nvmlDeviceGetBAR1MemoryInfo bar1Total.",
)
GPU_BAR1_MEMORY_USED = _gauge(
    "bar1_memory_used_bytes", "Mapped part of it. NVML: nvmlDeviceGetBAR1MemoryInfo bar1Used."
)

# Power, temperature, clocks.
GPU_POWER = _gauge(
    "power_watts",
    "Power that the GPU draws. NVML: field 186 POWER_INSTANT, on drivers without it nvmlDeviceGetPowerUsage.",
)
GPU_POWER_LIMIT = _gauge("power_limit_watts", "Power limit in force. NVML: nvmlDeviceGetEnforcedPowerLimit.")
GPU_POWER_DEFAULT_LIMIT = _gauge(
    "power_default_limit_watts", "Power limit from the factory. NVML: field 189 POWER_DEFAULT_LIMIT."
)
GPU_POWER_MIN_LIMIT = _gauge("power_min_limit_watts", "Lowest limit that can be set. NVML: field 187 POWER_MIN_LIMIT.")
GPU_POWER_MAX_LIMIT = _gauge("power_max_limit_watts", "Highest limit that can be set. NVML: field 188 POWER_MAX_LIMIT.")
GPU_ENERGY = _counter(
    "energy_joules", "Energy used since the driver was loaded. NVML: field 83 TOTAL_ENERGY_CONSUMPTION."
)
GPU_TEMPERATURE = _gauge(
    "temperature_celsius",
    "Temperature at a sensor. NVML: gpu nvmlDeviceGetTemperatureV, on drivers without it nvmlDeviceGetTemperature; "
    "memory field 82 MEMORY_TEMP.",
    "sensor",
)
GPU_TEMPERATURE_THRESHOLD = _gauge(
    "temperature_threshold_celsius",
    "Temperature at which something happens. NVML: nvmlDeviceGetTemperatureThreshold.",
    "threshold",
)
GPU_TEMPERATURE_MARGIN = _gauge(
    "temperature_margin_celsius",
    "Distance to the temperature at which clocks are lowered. NVML: nvmlDeviceGetMarginTemperature.",
)
GPU_FAN_SPEED = _gauge(
    "fan_speed_ratio", "Intended speed as a share of the highest. NVML: nvmlDeviceGetFanSpeed_v2.", "fan"
)
GPU_CLOCK = _gauge("clock_hertz", "Clock of a domain. NVML: nvmlDeviceGetClockInfo.", "clock")
GPU_CLOCK_MAX = _gauge("clock_max_hertz", "Highest clock of a domain. NVML: nvmlDeviceGetMaxClockInfo.", "clock")
GPU_PERFORMANCE_STATE = _gauge(
    "performance_state", "Performance state, 0 (fastest) to 15. NVML: nvmlDeviceGetPerformanceState."
)
GPU_CLOCK_EVENT_ACTIVE = _gauge(
    "clock_event_active",
    "1 while the reason holds the clocks down; a reason with gpu_clock_event_seconds_total is not told twice. "
    "NVML: nvmlDeviceGetCurrentClocksEventReasons, on drivers without it nvmlDeviceGetCurrentClocksThrottleReasons; "
    "reasons of nvmlDeviceGetSupportedClocksEventReasons.",
    "reason",
)
GPU_CLOCK_EVENT_SECONDS = _counter(
    "clock_event_seconds",
    "Time for which the reason held the clocks down. NVML: fields 74 PERF_POLICY_POWER, 76 PERF_POLICY_SYNC_BOOST, "
    "77 PERF_POLICY_BOARD_LIMIT, 78 PERF_POLICY_LOW_UTILIZATION, 79 PERF_POLICY_RELIABILITY; from R580 "
    "269 CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 270 CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, "
    "271 CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, before it 75 PERF_POLICY_THERMAL as reason thermal.",
    "reason",
)

# Memory errors.
GPU_ECC_VOLATILE_ERRORS = _counter(
    "ecc_volatile_errors",
    "Memory errors since the driver was loaded. NVML: fields 3 ECC_SBE_VOL_TOTAL, 4 ECC_DBE_VOL_TOTAL.",
    "severity",
)
GPU_ECC_AGGREGATE_ERRORS = _counter(
    "ecc_aggregate_errors",
    "Memory errors in the life of the GPU. NVML: fields 5 ECC_SBE_AGG_TOTAL, 6 ECC_DBE_AGG_TOTAL.",
    "severity",
)
GPU_ECC_MODE_ENABLED = _gauge("ecc_mode_enabled", "1 when errors are corrected. NVML: field 1 ECC_CURRENT.")
GPU_ECC_SRAM_THRESHOLD_EXCEEDED = _gauge(
    "ecc_sram_threshold_exceeded",
    "1 when the GPU had more uncorrectable errors in its SRAM than it should be used with. "
    "NVML: nvmlDeviceGetSramEccErrorStatus bThresholdExceeded.",
)
GPU_REMAPPED_ROWS = _counter(
    "remapped_rows", "Rows of memory replaced by spare ones. NVML: fields 142 REMAPPED_COR, 143 REMAPPED_UNC.", "cause"
)
GPU_ROW_REMAP_PENDING = _gauge(
    "row_remap_pending", "1 when a row is replaced at the next reset of the GPU. NVML: field 144 REMAPPED_PENDING."
)
GPU_ROW_REMAP_FAILED = _gauge(
    "row_remap_failed", "1 when a row could not be replaced. NVML: field 145 REMAPPED_FAILURE."
)
GPU_ROW_REMAP_BANKS = _gauge(
    "row_remap_banks",
    "Banks of memory by how many spare rows are left. NVML: nvmlDeviceGetRowRemapperHistogram.",
    "availability",
)
GPU_RETIRED_PAGES = _counter(
    "retired_pages",
    "Pages of memory taken out of use, on GPUs before Ampere. NVML: fields 29 RETIRED_SBE, 30 RETIRED_DBE.",
    "cause",
)
GPU_RETIRED_PAGES_PENDING = _gauge(
    "retired_pages_pending", "1 when a page is taken out at the next reboot. NVML: field 31 RETIRED_PENDING."
)
GPU_REPAIR_PENDING = _gauge(
    "repair_pending", "1 when the GPU repairs itself at its next reset. NVML: nvmlDeviceGetRepairStatus.", "kind"
)

# PCIe.
_PCIE_BYTES = (
    "Where the driver counts in 32 bits, multiples of 4 GiB between two scrapes are told from GPM's rate (20, 21); "
    "absent there on GPUs without GPM. NVML:"
)
GPU_PCIE_RECEIVE = _counter(
    "pcie_receive_bytes",
    f"Bytes to the GPU. {_PCIE_BYTES} nvmlGpmMetricsGet 256 PCIE_RX, else field 198 PCIE_COUNT_RX_BYTES.",
)
GPU_PCIE_TRANSMIT = _counter(
    "pcie_transmit_bytes",
    f"Bytes from the GPU. {_PCIE_BYTES} nvmlGpmMetricsGet 255 PCIE_TX, else field 197 PCIE_COUNT_TX_BYTES.",
)
GPU_PCIE_REPLAYS = _counter("pcie_replays", "Packets sent again. NVML: field 94 PCIE_REPLAY_COUNTER.")
GPU_PCIE_ERRORS = _counter(
    "pcie_errors",
    "Errors of the PCIe link. NVML: fields 173 PCIE_COUNT_CORRECTABLE_ERRORS, 174 PCIE_COUNT_NAKS_RECEIVED, "
    "175 PCIE_COUNT_RECEIVER_ERROR, 176 PCIE_COUNT_BAD_TLP, 177 PCIE_COUNT_NAKS_SENT, 178 PCIE_COUNT_BAD_DLLP, "
    "179 PCIE_COUNT_NON_FATAL_ERROR, 180 PCIE_COUNT_FATAL_ERROR, 181 PCIE_COUNT_UNSUPPORTED_REQ, "
    "182 PCIE_COUNT_LCRC_ERROR, 183 PCIE_COUNT_LANE_ERROR.",
    "error",
)
GPU_PCIE_LINK_GENERATION = _gauge(
    "pcie_link_generation", "PCIe generation in use. NVML: nvmlDeviceGetCurrPcieLinkGeneration."
)
GPU_PCIE_LINK_GENERATION_MAX = _gauge(
    "pcie_link_generation_max", "Highest generation that GPU and slot can. NVML: nvmlDeviceGetMaxPcieLinkGeneration."
)
GPU_PCIE_LINK_WIDTH = _gauge("pcie_link_width", "PCIe lanes in use. NVML: nvmlDeviceGetCurrPcieLinkWidth.")
GPU_PCIE_LINK_WIDTH_MAX = _gauge(
    "pcie_link_width_max", "Most lanes that GPU and slot can. NVML: nvmlDeviceGetMaxPcieLinkWidth."
)

# NVLink.
GPU_NVLINK_RECEIVE = _counter(
    "nvlink_receive_bytes",
    "Bytes over all links to the GPU. NVML: field 139 NVLINK_THROUGHPUT_DATA_RX, else 204 NVLINK_COUNT_RCV_BYTES.",
)
GPU_NVLINK_TRANSMIT = _counter(
    "nvlink_transmit_bytes",
    "Bytes over all links from the GPU. NVML: field 138 NVLINK_THROUGHPUT_DATA_TX, else 202 NVLINK_COUNT_XMIT_BYTES.",
)
GPU_NVLINK_ERRORS = _counter(
    "nvlink_errors",
    "Errors of all links. NVML: up to Ampere fields 38 NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "
    "45 NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 52 NVLINK_REPLAY_ERROR_COUNT_TOTAL, 59 NVLINK_RECOVERY_ERROR_COUNT_TOTAL; "
    "Hopper 161 NVLINK_ERROR_DL_REPLAY, 162 NVLINK_ERROR_DL_RECOVERY, 163 NVLINK_ERROR_DL_CRC; "
    "Blackwell 206 to 214, 219 NVLINK_COUNT_EFFECTIVE_ERRORS and 221 NVLINK_COUNT_SYMBOL_ERRORS.",
    "error",
)
GPU_NVLINK_LINKS = _gauge(
    "nvlink_links", "Links by state. NVML: field 165 NVLINK_GET_STATE, else nvmlDeviceGetNvLinkState.", "state"
)
GPU_FABRIC_STATE = _gauge(
    "fabric_state",
    "1 for how far the GPU has joined the NVLink fabric. NVML: nvmlDeviceGetGpuFabricInfoV state.",
    "state",
)
GPU_FABRIC_HEALTH = _gauge(
    "fabric_health",
    "1 when the condition of the NVLink fabric holds, all of them bad. NVML: nvmlDeviceGetGpuFabricInfoV healthMask.",
    "condition",
)

# XID errors.
GPU_XID_ERRORS = _counter(
    "xid_errors",
    "Errors that the driver reported since the exporter started, by their code; tier is critical, warning, "
    "application (the training's own fault, or for information) or other. "
    "NVML: events of type nvmlEventTypeXidCriticalError, and the kernel log.",
    "xid",
    "tier",
)
GPU_XID_LAST_TIMESTAMP = _gauge(
    "xid_last_timestamp_seconds",
    "Unix time of the newest error with this code, since the node booted. "
    "NVML: events of type nvmlEventTypeXidCriticalError, and the kernel log.",
    "xid",
    "tier",
)

# MIG.
_MIG = ("gpu_instance_id", "mig_uuid")
GPU_MIG_INFO = _gauge(
    "mig_info",
    "1, with the facts of a MIG device. NVML: nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetGpuInstanceId, "
    "nvmlDeviceGetComputeInstanceId, nvmlDeviceGetName, nvmlDeviceGetUUID.",
    "gpu_instance_id",
    "compute_instance_id",
    "profile",
    "mig_uuid",
)
GPU_MIG_MEMORY_CAPACITY = _gauge(
    "mig_memory_capacity_bytes", "Memory of a MIG device. NVML: nvmlDeviceGetMemoryInfo_v2 total of its handle.", *_MIG
)
GPU_MIG_MEMORY_USED = _gauge(
    "mig_memory_used_bytes", "Memory of it in use. NVML: nvmlDeviceGetMemoryInfo_v2 used of its handle.", *_MIG
)
_GPM_MIG = "of a MIG device, over the time since the scrape before. NVML: nvmlGpmMigSampleGet, nvmlGpmMetricsGet"
GPU_MIG_SM_ACTIVITY = _gauge("mig_sm_activity_ratio", f"As gpu_sm_activity_ratio, {_GPM_MIG} 2 SM_UTIL.", *_MIG)
GPU_MIG_SM_OCCUPANCY = _gauge("mig_sm_occupancy_ratio", f"As gpu_sm_occupancy_ratio, {_GPM_MIG} 3 SM_OCCUPANCY.", *_MIG)
GPU_MIG_TENSOR_ACTIVITY = _gauge(
    "mig_tensor_activity_ratio", f"As gpu_tensor_activity_ratio, {_GPM_MIG} 5 ANY_TENSOR_UTIL.", *_MIG
)
GPU_MIG_DRAM_BANDWIDTH = _gauge(
    "mig_dram_bandwidth_utilization_ratio",
    f"As gpu_dram_bandwidth_utilization_ratio, {_GPM_MIG} 10 DRAM_BW_UTIL.",
    *_MIG,
)

# Workload: what runs on the GPU.
_WORKLOAD = ("mig_uuid", "training_run", "training_rank", "pod_uid", "slurm_job_id")
GPU_WORKLOAD_INFO = _gauge(
    "workload_info",
    "1, with what runs on the GPU; a label is empty where it is not known. "
    "NVML: nvmlDeviceGetComputeRunningProcesses_v3, joined with the ranks' state files and the "
    "control groups and environment of the process.",
    *_WORKLOAD,
    "namespace",
    "pod",
    "container",
    "slurm_user",
)
GPU_WORKLOAD_MEMORY_USED = _gauge(
    "workload_memory_used_bytes",
    "Device memory that the workload's processes use. NVML: nvmlDeviceGetComputeRunningProcesses_v3 usedGpuMemory.",
    *_WORKLOAD,
)
GPU_WORKLOAD_SM_UTILIZATION = _gauge(
    "workload_sm_utilization_ratio",
    "Share of the driver's newest sample period in which kernels of the workload ran, the sum over its processes; "
    "absent while none of them has a new sample, as on an idle GPU. NVML: nvmlDeviceGetProcessUtilization smUtil.",
    *_WORKLOAD,
)
GPU_WORKLOAD_PROCESSES = _gauge(
    "workload_processes", "Processes of the workload. NVML: nvmlDeviceGetComputeRunningProcesses_v3.", *_WORKLOAD
)

#: Every metric about GPUs.
GPU_FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))


class SessionFamilies(NamedTuple):
    """What is said of the session with a vendor's library."""

    available: Family
    status: Family
    errors: Family
    timeouts: Family
    stuck: Family
    rejected: Family


def session_families(name: str, library: str, vendor: str) -> SessionFamilies:
    """Return the families of a session, given the collector's name and those of library and vendor for people."""

    def family(suffix: str, kind: Literal["counter", "gauge"], text: str, *labels: str) -> Family:
        return Family(f"{PREFIX}_{name}_{suffix}", kind, text, labels)

    return SessionFamilies(
        family("available", "gauge", f"1 when {library} answers; 0 is normal on a node without {vendor} GPUs."),
        family("status", "gauge", f"1 for the state of the session with {library}.", "status", HOST),
        family(
            "errors_total",
            "counter",
            f"Calls of {library} that failed, by function; what a GPU or a driver does not support is no failure.",
            "function",
        ),
        family(
            "call_timeouts_total",
            "counter",
            f"Calls of {library} that did not return in time, by function; each cost the process that it runs in.",
            "function",
        ),
        family(
            "stuck_processes",
            "gauge",
            "Processes that hang in a driver call and cannot be killed; they end when the driver lets them go.",
        ),
        family(
            "values_rejected_total",
            "counter",
            f"Values from {library} that cannot be true and are not exported.",
            "metric",
        ),
    )


NVML = session_families("nvml", "NVML", "NVIDIA")
AMD_SMI = session_families("amd_smi", "AMD SMI", "AMD")

KERNEL_LOG_READABLE = Family(
    f"{PREFIX}_kernel_log_readable",
    "gauge",
    "1 when XID errors are read from the kernel log too; without it those of NVML's events are all there is.",
)
