"""The metrics of the node exporter itself. Those of a collector stand in its module."""

from __future__ import annotations

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
