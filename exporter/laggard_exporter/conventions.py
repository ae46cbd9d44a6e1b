"""Every metric of the node exporter, as data: name, type, help and labels.

Rank metrics come from the contract in :mod:`laggard.shared.metrics`, those of GPUs from
:mod:`laggard_exporter.nvml.conventions`: they carry the label ``uuid``, and static facts stand in ``gpu_info`` alone.
What a GPU or a driver cannot tell is absent, never 0.
"""

from __future__ import annotations

from laggard.shared.metrics import PROCESS_METRICS, Attribute
from laggard.shared.names import prometheus_label, prometheus_name
from laggard_exporter.host.conventions import HOST, HOST_FAMILIES
from laggard_exporter.nvml.conventions import GPU_FAMILIES
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
    "0 when the newest web configuration file cannot be used and the one before stays in force; absent without one.",
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
NVML_STATUS = Family(f"{PREFIX}_nvml_status", "gauge", "1 for the state of the session with NVML.", ("status", HOST))
NVML_ERRORS = Family(
    f"{PREFIX}_nvml_errors_total",
    "counter",
    "Calls of an NVML function that failed; what a GPU or a driver does not support is no failure.",
    ("function",),
)
NVML_CALL_TIMEOUTS = Family(
    f"{PREFIX}_nvml_call_timeouts_total",
    "counter",
    "Calls of an NVML function that did not return in time; each cost the process that NVML runs in.",
    ("function",),
)
NVML_STUCK_PROCESSES = Family(
    f"{PREFIX}_nvml_stuck_processes",
    "gauge",
    "Processes that hang in a driver call and cannot be killed; they end when the driver lets them go.",
)
KERNEL_LOG_READABLE = Family(
    f"{PREFIX}_kernel_log_readable",
    "gauge",
    "1 when XID errors are read from the kernel log too; without it those of NVML's events are all there is.",
)
NVML_VALUES_REJECTED = Family(
    f"{PREFIX}_nvml_values_rejected_total",
    "counter",
    "Values from NVML that cannot be true and are not exported.",
    ("metric",),
)

NVML_FAMILIES = (
    NVML_AVAILABLE,
    NVML_STATUS,
    NVML_ERRORS,
    NVML_CALL_TIMEOUTS,
    NVML_STUCK_PROCESSES,
    NVML_VALUES_REJECTED,
    KERNEL_LOG_READABLE,
    *GPU_FAMILIES,
)

#: Every metric that the exporter may emit.
FAMILIES = (*SELF_FAMILIES, *STATE_FAMILIES, *NVML_FAMILIES, *HOST_FAMILIES, *RANK_FAMILIES)
