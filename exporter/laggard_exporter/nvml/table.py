"""What is read from each GPU: data that the collector walks.

Numbers of fields and sensors stand here as nvml.h declares them. The constants of nvidia-ml-py are not used: the
fields 269 to 271 had other numbers in its releases for R575.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from laggard_exporter import conventions
from laggard_exporter.samples import Family


@dataclass(frozen=True)
class Call:
    """A function of nvidia-ml-py; ``attribute`` is the part of its answer, where that is a structure."""

    function: str
    arguments: tuple[int, ...] = ()
    attribute: str = ""


@dataclass(frozen=True)
class Field:
    """A field of nvmlDeviceGetFieldValues, read from drivers of the release range ``[since, until)`` only."""

    number: int
    since: int = 0
    until: int = 10_000


@dataclass(frozen=True)
class Reading:
    """One value of a GPU: from the first source that has an answer, times ``scale``.

    A raw value outside ``minimum`` to ``maximum`` can not be true and is rejected; ``unknown`` is the raw value by
    which NVML says that it does not know.
    """

    family: Family
    sources: tuple[Call | Field, ...]
    scale: Fraction
    maximum: int
    labels: tuple[str, ...] = ()
    minimum: int = 0
    unknown: int | None = None


_ONE = Fraction(1)
_PERCENT = Fraction(1, 100)
_MILLI = Fraction(1, 1_000)
_NANO = Fraction(1, 1_000_000_000)
_MEGA = Fraction(1_000_000)

# Wide bounds: they catch all-ones words and other garbage, not what a future GPU may do.
_BYTES_MAX = 1 << 50
_MILLIWATTS_MAX = 100_000_000
_MILLIJOULES_MAX = 1 << 53
_MEGAHERTZ_MAX = 20_000
_NANOSECONDS_MAX = 1 << 62
_CELSIUS_MIN, _CELSIUS_MAX = -100, 250
_PERFORMANCE_STATE_MAX, _PERFORMANCE_STATE_UNKNOWN = 15, 32
_REASONS_MAX = (1 << 32) - 2

_MEMORY_INFO_V2 = 0x02000028  # with the version of the structure: the first version does not tell reserved memory
_SENSOR_GPU = 0
_SCOPE_NODE = 0

_UTILIZATION = "nvmlDeviceGetUtilizationRates"
_MEMORY_INFO = "nvmlDeviceGetMemoryInfo"


def _memory(family: Family, attribute: str) -> Reading:
    return Reading(family, (Call(_MEMORY_INFO, (_MEMORY_INFO_V2,), attribute),), _ONE, _BYTES_MAX)


def _clocks(family: Family, function: str) -> tuple[Reading, ...]:
    domains = ("graphics", "sm", "memory", "video")
    return tuple(
        Reading(family, (Call(function, (number,)),), _MEGA, _MEGAHERTZ_MAX, (domain,))
        for number, domain in enumerate(domains)
    )


_CLOCK_EVENT_FIELDS = {
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

READINGS = (
    Reading(conventions.GPU_UTILIZATION, (Call(_UTILIZATION, (), "gpu"),), _PERCENT, 100),
    Reading(conventions.GPU_MEMORY_COPY_UTILIZATION, (Call(_UTILIZATION, (), "memory"),), _PERCENT, 100),
    _memory(conventions.GPU_MEMORY_CAPACITY, "total"),
    _memory(conventions.GPU_MEMORY_USED, "used"),
    _memory(conventions.GPU_MEMORY_FREE, "free"),
    _memory(conventions.GPU_MEMORY_RESERVED, "reserved"),
    Reading(conventions.GPU_POWER, (Field(186), Call("nvmlDeviceGetPowerUsage")), _MILLI, _MILLIWATTS_MAX),
    Reading(conventions.GPU_POWER_LIMIT, (Call("nvmlDeviceGetEnforcedPowerLimit"),), _MILLI, _MILLIWATTS_MAX),
    Reading(conventions.GPU_ENERGY, (Field(83),), _MILLI, _MILLIJOULES_MAX),
    Reading(
        conventions.GPU_TEMPERATURE,
        # The second is deprecated; drivers up to R550, widely used, have nothing else.
        (Call("nvmlDeviceGetTemperatureV", (_SENSOR_GPU,)), Call("nvmlDeviceGetTemperature", (_SENSOR_GPU,))),
        _ONE,
        _CELSIUS_MAX,
        ("gpu",),
        _CELSIUS_MIN,
    ),
    Reading(conventions.GPU_TEMPERATURE, (Field(82),), _ONE, _CELSIUS_MAX, ("memory",), _CELSIUS_MIN),
    *_clocks(conventions.GPU_CLOCK, "nvmlDeviceGetClockInfo"),
    *_clocks(conventions.GPU_CLOCK_MAX, "nvmlDeviceGetMaxClockInfo"),
    Reading(
        conventions.GPU_PERFORMANCE_STATE,
        (Call("nvmlDeviceGetPerformanceState"),),
        _ONE,
        _PERFORMANCE_STATE_MAX,
        unknown=_PERFORMANCE_STATE_UNKNOWN,
    ),
    *(
        Reading(conventions.GPU_CLOCK_EVENT_SECONDS, (field,), _NANO, _NANOSECONDS_MAX, (reason,))
        for reason, field in _CLOCK_EVENT_FIELDS.items()
    ),
)

#: A word of bits, one per reason of :data:`CLOCK_EVENT_BITS`.
CLOCK_EVENTS = Reading(
    conventions.GPU_CLOCK_EVENT_ACTIVE, (Call("nvmlDeviceGetCurrentClocksEventReasons"),), _ONE, _REASONS_MAX
)


@dataclass(frozen=True)
class ClockEvent:
    """A reason to hold the clocks down; drivers before ``since`` never report it."""

    reason: str
    bit: int
    since: int = 0


CLOCK_EVENT_BITS = (
    ClockEvent("idle", 0x1),
    ClockEvent("application_clocks", 0x2),
    ClockEvent("sw_power_cap", 0x4),
    ClockEvent("hw_slowdown", 0x8),
    ClockEvent("sync_boost", 0x10),
    ClockEvent("sw_thermal", 0x20),
    ClockEvent("hw_thermal", 0x40),
    ClockEvent("hw_power_brake", 0x80),
    ClockEvent("display_clocks", 0x100),
    ClockEvent("board_limit", 0x200, since=615),
    ClockEvent("reliability", 0x400, since=615),
)

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

#: The labels of ``gpu_driver_info``.
DRIVER_FACTS = {
    "driver": "nvmlSystemGetDriverVersion",
    "nvml": "nvmlSystemGetNVMLVersion",
    "cuda": "nvmlSystemGetCudaDriverVersion_v2",
}
