"""What is read from each GPU: data that the collector walks.

Numbers of fields, sensors and metrics stand here as nvml.h declares them. The constants of nvidia-ml-py are not used:
the fields 269 to 271 had other numbers in its releases for R575.

What a driver can is found by asking it. The release of the driver counts only where a number changed its meaning,
which no question to the driver can tell.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus.readings import Call, Reading
from laggard_exporter.samples import Family


class Field(NamedTuple):
    """A field of nvmlDeviceGetFieldValues, read from drivers of the release range ``[since, until)`` only."""

    number: int
    since: int = 0
    until: int = 10_000
    scope: int = 0


class Metric(NamedTuple):
    """A metric of GPM, the performance monitor of Hopper and later: a mean over the time since the last scrape."""

    number: int


Source = Call | Field | Metric


_ONE = (1, 1)
_PERCENT = (1, 100)
_MILLI = (1, 1_000)
_NANO = (1, 1_000_000_000)
_MEGA = (1_000_000, 1)
_KIBI = (1024, 1)

# Wide bounds: they catch all-ones words and other garbage, not what a future GPU may do.
_BYTES_MAX = 1 << 50
_MILLIWATTS_MAX = 100_000_000
_MILLIJOULES_MAX = 1 << 53
_MEGAHERTZ_MAX = 20_000
_NANOSECONDS_MAX = 1 << 62
_CELSIUS_MIN, _CELSIUS_MAX = -100, 250
_PERFORMANCE_STATE_MAX, _PERFORMANCE_STATE_UNKNOWN = 15, 32
_REASONS_MAX = (1 << 32) - 2
# Sentinels of the driver's own tools begin at 2**47 - 16 (140737488355328 is "blank"), all ones are 2**64 - 1.
_COUNT_MAX = (1 << 47) - 17
_TRAFFIC_MAX = (1 << 62) - 1
_WORD_MAX = (1 << 32) - 2
_LANES_MAX, _GENERATION_MAX = 64, 16

_MEMORY_INFO_V2 = 0x02000028  # with the version of the structure: the first version does not tell reserved memory
_SENSOR_GPU = 0
_SCOPE_NODE = 0
_ALL_LINKS = 0xFFFFFFFF

_UTILIZATION = "nvmlDeviceGetUtilizationRates"
#: The share of time in which a kernel ran, in per cent.
UTILIZATION = Call(_UTILIZATION, (), "gpu")
_MEMORY_INFO = "nvmlDeviceGetMemoryInfo"


def answered(answer: Any) -> Any:
    """Return an answer, None for a structure about memory of which there is none: the driver filled nothing in."""
    parts = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    return None if 0 in (parts.get("total"), parts.get("bar1Total")) else cast("Any", answer)


def _memory(family: Family, attribute: str, *, old: bool = True) -> Reading[Source]:
    sources = (Call(_MEMORY_INFO, (_MEMORY_INFO_V2,), attribute), Call(_MEMORY_INFO, (), attribute))
    return Reading(family, sources if old else sources[:1], _ONE, _BYTES_MAX)


def _clocks(family: Family, function: str) -> tuple[Reading[Source], ...]:
    domains = ("graphics", "sm", "memory", "video")
    # The clock of the graphics engine is that of the multiprocessors wherever these compute.
    return tuple(
        Reading(
            family,
            (Call(function, (number,)),),
            _MEGA,
            _MEGAHERTZ_MAX,
            (domain,),
            detail=domain not in {"sm", "memory"},
        )
        for number, domain in enumerate(domains)
    )


def _ratio(family: Family, source: Source, *labels: str, detail: bool = False) -> Reading[Source]:
    return Reading(family, (source,), _PERCENT, 100, labels, detail=detail)


def _flag(family: Family, source: Source, *labels: str) -> Reading[Source]:
    return Reading(family, (source,), _ONE, 1, labels)


def _count(family: Family, number: int, *labels: str, detail: bool = False) -> Reading[Source]:
    return Reading(family, (Field(number),), _ONE, _COUNT_MAX, labels, detail=detail)


def _whole(family: Family, function: str, maximum: int, *labels: str, attribute: str | None = None) -> Reading[Source]:
    return Reading(family, (Call(function, (), attribute),), _ONE, maximum, labels)


CLOCK_EVENT_FIELDS = {
    "sw_power_cap": Field(74),
    "sync_boost": Field(76),
    "board_limit": Field(77),
    "low_utilization": Field(78),
    "reliability": Field(79),
    # R575 has these three under other numbers and something else under these.
    "sw_thermal": Field(269, since=580),
    "hw_thermal": Field(270, since=580),
    "hw_power_brake": Field(271, since=580),
    "thermal": Field(75, until=580),
}
_PIPES = {"fp64": 11, "fp32": 12, "fp16": 13}
# Of integers, and the parts of what the tensor cores do.
_PIPE_DETAILS = {"int": 4, "dfma": 6, "hmma": 7, "dmma": 8, "imma": 9}
_PCIE_ERRORS = {"correctable": 173, "non_fatal": 179, "fatal": 180, "unsupported_request": 181}
# Where on the link the correctable ones come from.
_PCIE_ERROR_DETAILS = {
    "nak_received": 174,
    "receiver": 175,
    "bad_tlp": 176,
    "nak_sent": 177,
    "bad_dllp": 178,
    "lcrc": 182,
    "lane": 183,
}
_THRESHOLD_DETAILS = {"shutdown", "gpu_max"}
#: By NVML's number. Of those since R595 and R615 two are stronger kinds of a reset and of a reboot.
_RECOVERY_ACTIONS = (
    "none",
    "reset",
    "reboot",
    "drain_p2p",
    "drain_reset",
    "unknown",
    "reset",
    "reboot",
    "unknown",
)

READINGS: tuple[Reading[Source], ...] = (
    Reading(
        names.GPU_RECOVERY_ACTION,
        (Field(230),),
        _ONE,
        _WORD_MAX,
        states=_RECOVERY_ACTIONS,
    ),
    _ratio(names.GPU_UTILIZATION, UTILIZATION),
    _ratio(names.GPU_MEMORY_COPY_UTILIZATION, Call(_UTILIZATION, (), "memory")),
    _ratio(names.GPU_ENCODER_UTILIZATION, Call("nvmlDeviceGetEncoderUtilization", (), 0)),
    _ratio(names.GPU_DECODER_UTILIZATION, Call("nvmlDeviceGetDecoderUtilization", (), 0)),
    _ratio(names.GPU_JPEG_UTILIZATION, Call("nvmlDeviceGetJpgUtilization", (), 0)),
    _ratio(names.GPU_OFA_UTILIZATION, Call("nvmlDeviceGetOfaUtilization", (), 0)),
    _ratio(names.GPU_GRAPHICS_ACTIVITY, Metric(1)),
    _ratio(names.GPU_SM_ACTIVITY, Metric(2)),
    _ratio(names.GPU_SM_OCCUPANCY, Metric(3)),
    _ratio(names.GPU_TENSOR_ACTIVITY, Metric(5)),
    _ratio(names.GPU_DRAM_BANDWIDTH, Metric(10)),
    *(_ratio(names.GPU_PIPE_ACTIVITY, Metric(number), pipe) for pipe, number in _PIPES.items()),
    *(_ratio(names.GPU_PIPE_ACTIVITY, Metric(number), pipe, detail=True) for pipe, number in _PIPE_DETAILS.items()),
    Reading(names.GPU_SM_CYCLES, (Metric(248),), _ONE, _TRAFFIC_MAX),
    Reading(names.GPU_SM_ACTIVE_CYCLES, (Metric(249),), _ONE, _TRAFFIC_MAX),
    Reading(names.GPU_TENSOR_ACTIVE_CYCLES, (Metric(250),), _ONE, _TRAFFIC_MAX),
    _memory(names.GPU_MEMORY_CAPACITY, "total"),
    _memory(names.GPU_MEMORY_USED, "used"),
    _memory(names.GPU_MEMORY_FREE, "free"),
    _memory(names.GPU_MEMORY_RESERVED, "reserved", old=False),
    _whole(names.GPU_BAR1_MEMORY_CAPACITY, "nvmlDeviceGetBAR1MemoryInfo", _BYTES_MAX, attribute="bar1Total"),
    _whole(names.GPU_BAR1_MEMORY_USED, "nvmlDeviceGetBAR1MemoryInfo", _BYTES_MAX, attribute="bar1Used"),
    Reading(names.GPU_POWER, (Field(186), Call("nvmlDeviceGetPowerUsage")), _MILLI, _MILLIWATTS_MAX),
    Reading(names.GPU_POWER_LIMIT, (Call("nvmlDeviceGetEnforcedPowerLimit"),), _MILLI, _MILLIWATTS_MAX),
    Reading(names.GPU_POWER_MIN_LIMIT, (Field(187),), _MILLI, _MILLIWATTS_MAX),
    Reading(names.GPU_POWER_MAX_LIMIT, (Field(188),), _MILLI, _MILLIWATTS_MAX),
    Reading(names.GPU_POWER_DEFAULT_LIMIT, (Field(189),), _MILLI, _MILLIWATTS_MAX),
    Reading(names.GPU_ENERGY, (Field(83),), _MILLI, _MILLIJOULES_MAX),
    Reading(
        names.GPU_TEMPERATURE,
        # The second is deprecated; drivers up to R550, widely used, have nothing else.
        (Call("nvmlDeviceGetTemperatureV", (_SENSOR_GPU,)), Call("nvmlDeviceGetTemperature", (_SENSOR_GPU,))),
        _ONE,
        _CELSIUS_MAX,
        ("gpu",),
        _CELSIUS_MIN,
    ),
    Reading(names.GPU_TEMPERATURE, (Field(82),), _ONE, _CELSIUS_MAX, ("memory",), _CELSIUS_MIN),
    *(
        Reading(
            names.GPU_TEMPERATURE_THRESHOLD,
            (Call("nvmlDeviceGetTemperatureThreshold", (number,)),),
            _ONE,
            _CELSIUS_MAX,
            (threshold,),
            _CELSIUS_MIN,
            detail=threshold in _THRESHOLD_DETAILS,
        )
        for number, threshold in enumerate(("shutdown", "slowdown", "memory_max", "gpu_max"))
    ),
    Reading(
        names.GPU_TEMPERATURE_MARGIN,
        (Call("nvmlDeviceGetMarginTemperature"),),
        _ONE,
        _CELSIUS_MAX,
        minimum=_CELSIUS_MIN,
    ),
    *_clocks(names.GPU_CLOCK, "nvmlDeviceGetClockInfo"),
    *_clocks(names.GPU_CLOCK_MAX, "nvmlDeviceGetMaxClockInfo"),
    Reading(
        names.GPU_PERFORMANCE_STATE,
        (Call("nvmlDeviceGetPerformanceState"),),
        _ONE,
        _PERFORMANCE_STATE_MAX,
        unknown=_PERFORMANCE_STATE_UNKNOWN,
    ),
    *(
        Reading(names.GPU_CLOCK_EVENT_SECONDS, (field,), _NANO, _NANOSECONDS_MAX, (reason,))
        for reason, field in CLOCK_EVENT_FIELDS.items()
    ),
    _count(names.GPU_ECC_VOLATILE_ERRORS, 3, "corrected"),
    _count(names.GPU_ECC_VOLATILE_ERRORS, 4, "uncorrected"),
    _count(names.GPU_ECC_AGGREGATE_ERRORS, 5, "corrected"),
    _count(names.GPU_ECC_AGGREGATE_ERRORS, 6, "uncorrected"),
    _flag(names.GPU_ECC_MODE_ENABLED, Field(1)),
    _flag(
        names.GPU_ECC_SRAM_THRESHOLD_EXCEEDED,
        Call("nvmlDeviceGetSramEccErrorStatus", (), "bThresholdExceeded"),
    ),
    _count(names.GPU_REMAPPED_ROWS, 142, "corrected"),
    _count(names.GPU_REMAPPED_ROWS, 143, "uncorrected"),
    _flag(names.GPU_ROW_REMAP_PENDING, Field(144)),
    _flag(names.GPU_ROW_REMAP_FAILED, Field(145)),
    *(
        _whole(names.GPU_ROW_REMAP_BANKS, "nvmlDeviceGetRowRemapperHistogram", _WORD_MAX, kind, attribute=kind)
        for kind in ("max", "high", "partial", "low", "none")
    ),
    _count(names.GPU_RETIRED_PAGES, 29, "corrected"),
    _count(names.GPU_RETIRED_PAGES, 30, "uncorrected"),
    _flag(names.GPU_RETIRED_PAGES_PENDING, Field(31)),
    _flag(names.GPU_REPAIR_PENDING, Call("nvmlDeviceGetRepairStatus", (), 0), "channel"),
    _flag(names.GPU_REPAIR_PENDING, Call("nvmlDeviceGetRepairStatus", (), 1), "tpc"),
    Reading(names.GPU_PCIE_RECEIVE, (Metric(256), Field(198)), _ONE, _TRAFFIC_MAX),
    Reading(names.GPU_PCIE_TRANSMIT, (Metric(255), Field(197)), _ONE, _TRAFFIC_MAX),
    _count(names.GPU_PCIE_REPLAYS, 94),
    *(_count(names.GPU_PCIE_ERRORS, number, error) for error, number in _PCIE_ERRORS.items()),
    *(_count(names.GPU_PCIE_ERRORS, number, error, detail=True) for error, number in _PCIE_ERROR_DETAILS.items()),
    _whole(names.GPU_PCIE_LINK_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration", _GENERATION_MAX),
    _whole(names.GPU_PCIE_LINK_GENERATION_MAX, "nvmlDeviceGetMaxPcieLinkGeneration", _GENERATION_MAX),
    _whole(names.GPU_PCIE_LINK_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth", _LANES_MAX),
    _whole(names.GPU_PCIE_LINK_WIDTH_MAX, "nvmlDeviceGetMaxPcieLinkWidth", _LANES_MAX),
    Reading(names.GPU_NVLINK_RECEIVE, (Field(139, scope=_ALL_LINKS),), _KIBI, _TRAFFIC_MAX),
    Reading(names.GPU_NVLINK_TRANSMIT, (Field(138, scope=_ALL_LINKS),), _KIBI, _TRAFFIC_MAX),
    _count(names.GPU_NVLINK_ERRORS, 38, "crc_flit"),
    _count(names.GPU_NVLINK_ERRORS, 45, "crc_data"),
    _count(names.GPU_NVLINK_ERRORS, 52, "replay"),
    _count(names.GPU_NVLINK_ERRORS, 59, "recovery"),
)

#: What GPM says of the rate of PCIe, in MiB/s, by the family of the counter.
PCIE_RATES = {names.GPU_PCIE_RECEIVE: 21, names.GPU_PCIE_TRANSMIT: 20}

#: A fan that the GPU has; how many there are is asked once.
FAN = "nvmlDeviceGetFanSpeed_v2"
#: Firmware may run a fan faster than its nominal full speed.
FAN_PERCENT_MAX = 200

#: A word of bits, one per reason of :data:`CLOCK_EVENT_BITS`.
CLOCK_EVENTS: Reading[Source] = Reading(
    names.GPU_CLOCK_EVENT_ACTIVE,
    (Call("nvmlDeviceGetCurrentClocksEventReasons"), Call("nvmlDeviceGetCurrentClocksThrottleReasons")),
    _ONE,
    _REASONS_MAX,
)
#: The reasons that the GPU may ever give.
SUPPORTED_CLOCK_EVENTS = Call("nvmlDeviceGetSupportedClocksEventReasons")

CLOCK_EVENT_BITS = {
    "idle": 0x1,
    "application_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}
#: The reasons of every driver; the later two are exported where the driver says that it knows them.
COMMON_CLOCK_EVENTS = 0x1FF
#: A reason of GPUs with a display.
CLOCK_EVENT_DETAIL = "display_clocks"

#: The state of the NVLink fabric, and its conditions by the place of their two bits: 1 true, 2 false, 0 not supported.
FABRIC = Call("nvmlDeviceGetGpuFabricInfoV")
FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
FABRIC_CONDITIONS = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
FABRIC_CONFIGURATION_SHIFT = 8

#: What answers for the metrics of GPM, and those of them that a MIG device has.
GPM = "nvmlGpmMetricsGet"
#: The metrics of GPM that are above 0 when anything runs: graphics and multiprocessors.
BUSY_METRICS = (1, 2)
MIG_ACTIVITY = {
    names.GPU_MIG_SM_ACTIVITY: 2,
    names.GPU_MIG_SM_OCCUPANCY: 3,
    names.GPU_MIG_TENSOR_ACTIVITY: 5,
    names.GPU_MIG_DRAM_BANDWIDTH: 10,
}

MEMORY = Call(_MEMORY_INFO, (_MEMORY_INFO_V2,))

#: The labels of ``gpu_info`` after uuid and index, and where their values come from.
FACTS = {
    "name": Call("nvmlDeviceGetName"),
    "pci_bus_id": Call("nvmlDeviceGetPciInfo", (), "busId"),
    "serial": Call("nvmlDeviceGetSerial"),
    "vbios": Call("nvmlDeviceGetVbiosVersion"),
    "arch": Call("nvmlDeviceGetArchitecture"),
    # The memory node of the host next to the GPU; nvmlDeviceGetNumaNodeId is about memory on the GPU.
    "numa_node": Call("nvmlDeviceGetMemoryAffinity", (1, _SCOPE_NODE)),
}

#: Names of architectures by the number that NVML gives.
ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}

#: The labels of ``gpu_driver_info``, before the host's.
DRIVER_FACTS = {
    "driver": "nvmlSystemGetDriverVersion",
    "nvml": "nvmlSystemGetNVMLVersion",
    "cuda": "nvmlSystemGetCudaDriverVersion_v2",
}


def part(answer: Any, source: Call) -> Any:
    """Return the part of an answer that the source names."""
    return answer if answer is None or source.attribute is None else answer[source.attribute]
