"""What is read from each GPU of AMD: family, function of AMD SMI, field, unit. Data that the collector walks."""

from __future__ import annotations

from laggard_exporter.gpus import conventions as names
from laggard_exporter.gpus.child_process import Request
from laggard_exporter.gpus.readings import Call, Reading
from laggard_exporter.samples import Family

METRICS = "amdsmi_get_gpu_metrics_info"
VRAM = "amdsmi_get_gpu_vram_usage"
CAP = "amdsmi_get_power_cap_info"
PCIE = "amdsmi_get_pcie_info"
ECC = "amdsmi_get_gpu_total_ecc_count"
PAGES = "amdsmi_get_gpu_bad_page_info"
CLOCK = "amdsmi_get_clock_info"
TEMPERATURE = "amdsmi_get_temp_metric"

COUNT = Request("amdsmi_get_processor_handles")
PROCESSES = "amdsmi_get_gpu_process_list"

_ONE = (1, 1)
_PERCENT = (1, 100)
_MICRO = (1, 1_000_000)
_MEGA = (1_000_000, 1)
_MEBI = (1 << 20, 1)
# 15.259 microjoules, says the header: 2**-16 J.
_ENERGY = (1, 1 << 16)

# Wide bounds: they catch garbage, not what a future GPU may do.
_MEBIBYTES_MAX = 1 << 30
_WATTS_MAX, _MICROWATTS_MAX = 100_000, 100_000_000_000
_MEGAHERTZ_MAX = 20_000
_CELSIUS_MIN, _CELSIUS_MAX = -100, 250
_COUNT_MAX, _ENERGY_MAX = (1 << 47) - 17, (1 << 62) - 1
_LANES_MAX, _GENERATION_MAX = 64, 16

# amdsmi_clk_type_t, amdsmi_temperature_type_t and amdsmi_temperature_metric_t.
_CLOCKS = {"sm": 0, "memory": 4}
_HOTSPOT, _MEMORY, _CRITICAL, _EMERGENCY = 1, 2, 5, 7


def _metric(*fields: str) -> tuple[Call, ...]:
    return tuple(Call(METRICS, (), field) for field in fields)


def _ratio(family: Family, field: str) -> Reading[Call]:
    return Reading(family, _metric(field), _PERCENT, 100)


def _memory(family: Family, field: str) -> Reading[Call]:
    return Reading(family, (Call(VRAM, (), field),), _MEBI, _MEBIBYTES_MAX)


def _cap(family: Family, field: str) -> Reading[Call]:
    # The library leaves 0 where it knows none.
    return Reading(family, (Call(CAP, (0,), field),), _MICRO, _MICROWATTS_MAX, unknown=0)


def _celsius(family: Family, label: str, *sources: Call, unknown: int | None = None) -> Reading[Call]:
    return Reading(family, sources, _ONE, _CELSIUS_MAX, (label,), _CELSIUS_MIN, unknown=unknown)


def _threshold(label: str, sensor: int, metric: int) -> Reading[Call]:
    return _celsius(names.GPU_TEMPERATURE_THRESHOLD, label, Call(TEMPERATURE, (sensor, metric)), unknown=0)


def _part(family: Family, function: str, field: str | None, *labels: str, maximum: int = _COUNT_MAX) -> Reading[Call]:
    return Reading(family, (Call(function, (), field),), _ONE, maximum, labels)


def _link(family: Family, field: str, maximum: int) -> Reading[Call]:
    return Reading(family, (Call(PCIE, (), field),), _ONE, maximum, unknown=0)


READINGS: tuple[Reading[Call], ...] = (
    _ratio(names.GPU_UTILIZATION, "average_gfx_activity"),
    _ratio(names.GPU_MEMORY_COPY_UTILIZATION, "average_umc_activity"),
    _memory(names.GPU_MEMORY_CAPACITY, "vram_total"),
    _memory(names.GPU_MEMORY_USED, "vram_used"),
    _memory(names.GPU_MEMORY_FREE, "vram_free"),
    Reading(names.GPU_POWER, _metric("current_socket_power", "average_socket_power"), _ONE, _WATTS_MAX),
    _cap(names.GPU_POWER_LIMIT, "power_cap"),
    _cap(names.GPU_POWER_MIN_LIMIT, "min_power_cap"),
    _cap(names.GPU_POWER_MAX_LIMIT, "max_power_cap"),
    _cap(names.GPU_POWER_DEFAULT_LIMIT, "default_power_cap"),
    Reading(names.GPU_ENERGY, _metric("energy_accumulator"), _ENERGY, _ENERGY_MAX),
    _celsius(names.GPU_TEMPERATURE, "gpu", *_metric("temperature_hotspot", "temperature_edge")),
    _celsius(names.GPU_TEMPERATURE, "memory", *_metric("temperature_mem")),
    _threshold("shutdown", _HOTSPOT, _EMERGENCY),
    _threshold("slowdown", _HOTSPOT, _CRITICAL),
    _threshold("memory_max", _MEMORY, _CRITICAL),
    Reading(
        names.GPU_CLOCK,
        # One for each die: the fastest, as of a GPU of which a part sleeps.
        _metric("current_gfxclks", "current_gfxclk", "average_gfxclk_frequency"),
        _MEGA,
        _MEGAHERTZ_MAX,
        ("sm",),
    ),
    Reading(names.GPU_CLOCK, _metric("current_uclk", "average_uclk_frequency"), _MEGA, _MEGAHERTZ_MAX, ("memory",)),
    *(
        Reading(names.GPU_CLOCK_MAX, (Call(CLOCK, (number,), "max_clk"),), _MEGA, _MEGAHERTZ_MAX, (domain,), unknown=0)
        for domain, number in _CLOCKS.items()
    ),
    _part(names.GPU_ECC_VOLATILE_ERRORS, ECC, "correctable_count", "corrected"),
    _part(names.GPU_ECC_VOLATILE_ERRORS, ECC, "uncorrectable_count", "uncorrected"),
    _part(names.GPU_ECC_MODE_ENABLED, "amdsmi_get_gpu_ecc_enabled", None, maximum=1),
    _part(names.GPU_ROW_REMAP_FAILED, PAGES, "failed", maximum=1),
    _part(names.GPU_RETIRED_PAGES, PAGES, "reserved", "uncorrected"),
    _part(names.GPU_RETIRED_PAGES_PENDING, PAGES, "pending", maximum=1),
    _part(names.GPU_PCIE_REPLAYS, PCIE, "pcie_replay_count"),
    _part(names.GPU_PCIE_ERRORS, PCIE, "pcie_nak_sent_count", "nak_sent"),
    _part(names.GPU_PCIE_ERRORS, PCIE, "pcie_nak_received_count", "nak_received"),
    _link(names.GPU_PCIE_LINK_GENERATION, "pcie_generation", _GENERATION_MAX),
    _link(names.GPU_PCIE_LINK_GENERATION_MAX, "max_pcie_generation", _GENERATION_MAX),
    _link(names.GPU_PCIE_LINK_WIDTH, "pcie_width", _LANES_MAX),
    _link(names.GPU_PCIE_LINK_WIDTH_MAX, "max_pcie_width", _LANES_MAX),
)

#: What every GPU is asked in a scrape, all of it at once.
CALLS: tuple[Call, ...] = tuple(dict.fromkeys(source.whole for reading in READINGS for source in reading.sources))

#: By reason, the accumulators of the time for which it held the clocks down, in units of :data:`WINDOW`'s first.
RESIDENCIES: dict[str, tuple[str, ...]] = {
    "sw_power_cap": ("ppt_residency_acc",),
    "hw_thermal": (
        "prochot_residency_acc",
        "socket_thm_residency_acc",
        "vr_thm_residency_acc",
        "hbm_thm_residency_acc",
    ),
}
#: How often the firmware added to them, and the driver's clock at that, in nanoseconds.
WINDOW = ("accumulation_counter", "system_clock_counter")

#: Bits of ``indep_throttle_status`` by reason, on GPUs that accumulate nothing (Linux, amdgpu_smu.h): the four limits
#: of package power, those of currents, those of temperatures.
THROTTLE_FIELD = "indep_throttle_status"
THROTTLE_BITS = {"sw_power_cap": 0xFF, "board_limit": 0xFF << 16, "hw_thermal": 0xFFFF << 32}

#: The labels of ``gpu_info`` after uuid and index, and the functions that their values come from.
FACTS = {
    "name": Call("amdsmi_get_gpu_asic_info", (), "market_name"),
    "pci_bus_id": Call("amdsmi_get_gpu_device_bdf"),
    "serial": Call("amdsmi_get_gpu_asic_info", (), "asic_serial"),
    "vbios": Call("amdsmi_get_gpu_vbios_info", (), "version"),
    "numa_node": Call("amdsmi_get_gpu_topo_numa_affinity"),
}
DRIVER = Call("amdsmi_get_gpu_driver_info")

#: Every function whose failures are counted.
FUNCTIONS = tuple(
    dict.fromkeys(
        (
            COUNT.function,
            *(call.function for call in FACTS.values()),
            DRIVER.function,
            *(call.function for call in CALLS),
            PROCESSES,
        )
    )
)
#: The families whose values are checked.
CHECKED: tuple[Family, ...] = tuple(dict.fromkeys(reading.family for reading in READINGS))
#: What is said of AMD's GPUs; the other families of GPUs are unknown there.
FAMILIES = (
    names.GPU_DRIVER_INFO,
    names.GPU_DEVICES,
    names.GPU_INFO,
    names.GPU_UP,
    *CHECKED,
    names.GPU_CLOCK_EVENT_SECONDS,
    names.GPU_CLOCK_EVENT_ACTIVE,
    names.GPU_WORKLOAD_INFO,
    names.GPU_WORKLOAD_MEMORY_USED,
    names.GPU_WORKLOAD_PROCESSES,
)
