"""The structures of AMD SMI that are read, as amdsmi.h declares them: data alone.

A library writes more than is read here, or less: a call gets a buffer that is larger than the structure of any known
version. It is filled with ones beforehand, which is also AMD's word for a value that is not there: what an older
library leaves as it was is absent like what it says is absent.
"""

from __future__ import annotations

import ctypes
from typing import Any, cast

U8, U16, U32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64

#: Larger than any structure.
SIZE = 1 << 16


def _structure(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def _named(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


#: The beginning, the same in all versions: each appends to it.
GPU_METRICS = _structure(
    "amdsmi_gpu_metrics_t",
    ("structure_size", U16),
    ("format_revision", U8),
    ("content_revision", U8),
    *_named(
        U16,
        "temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc temperature_vrmem "
        "average_gfx_activity average_umc_activity average_mm_activity average_socket_power",
    ),
    *_named(U64, "energy_accumulator system_clock_counter"),
    *_named(
        U16,
        "average_gfxclk_frequency average_socclk_frequency average_uclk_frequency average_vclk0_frequency "
        "average_dclk0_frequency average_vclk1_frequency average_dclk1_frequency current_gfxclk current_socclk "
        "current_uclk current_vclk0 current_dclk0 current_vclk1 current_dclk1",
    ),
    ("throttle_status", U32),
    *_named(U16, "current_fan_speed pcie_link_width pcie_link_speed"),
    *_named(U32, "gfx_activity_acc mem_activity_acc"),
    ("temperature_hbm", U16 * 4),
    ("firmware_timestamp", U64),
    *_named(U16, "voltage_soc voltage_gfx voltage_mem"),
    ("indep_throttle_status", U64),
    ("current_socket_power", U16),
    ("vcn_activity", U16 * 4),
    ("gfxclk_lock_status", U32),
    *_named(U16, "xgmi_link_width xgmi_link_speed"),
    *_named(
        U64,
        "pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc "
        "pcie_replay_rover_count_acc",
    ),
    ("xgmi_read_data_acc", U64 * 8),
    ("xgmi_write_data_acc", U64 * 8),
    ("current_gfxclks", U16 * 8),
    ("current_socclks", U16 * 4),
    ("current_vclk0s", U16 * 4),
    ("current_dclk0s", U16 * 4),
    ("jpeg_activity", U16 * 32),
    *_named(U32, "pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc"),
    *_named(
        U64,
        "accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc vr_thm_residency_acc "
        "hbm_thm_residency_acc",
    ),
)

PCIE_INFO = _structure(
    "amdsmi_pcie_info_t",
    ("max_pcie_width", U16),
    *_named(U32, "max_pcie_speed pcie_interface_version slot_type"),
    ("static_reserved", U64 * 10),
    ("pcie_width", U16),
    *_named(U32, "pcie_speed pcie_bandwidth"),
    *_named(
        U64,
        "pcie_replay_count pcie_l0_to_recovery_count pcie_replay_roll_over_count pcie_nak_sent_count "
        "pcie_nak_received_count",
    ),
)

POWER_CAP_INFO = _structure(
    "amdsmi_power_cap_info_t", *_named(U64, "power_cap default_power_cap dpm_cap min_power_cap max_power_cap")
)
VRAM_USAGE = _structure("amdsmi_vram_usage_t", *_named(U32, "vram_total vram_used"))
CLOCK_INFO = _structure("amdsmi_clk_info_t", *_named(U32, "clk min_clk max_clk"))
ERROR_COUNT = _structure("amdsmi_error_count_t", *_named(U64, "correctable_count uncorrectable_count deferred_count"))
RETIRED_PAGE = _structure("amdsmi_retired_page_record_t", *_named(U64, "page_address page_size"), ("status", U32))


def text(length: int) -> Any:
    """Return the type of a text of at most this length."""
    return ctypes.c_char * length


def _asic_info(vendor: int, serial: int) -> type[ctypes.Structure]:
    return _structure(
        "amdsmi_asic_info_t",
        ("market_name", text(256)),
        ("vendor_id", U32),
        ("vendor_name", text(vendor)),
        ("subvendor_id", U32),
        ("device_id", U64),
        ("rev_id", U32),
        ("asic_serial", text(serial)),
    )


def _vbios_info(name: int, date: int, version: int) -> type[ctypes.Structure]:
    return _structure(
        "amdsmi_vbios_info_t",
        ("name", text(name)),
        ("build_date", text(date)),
        ("part_number", text(name)),
        ("version", text(version)),
    )


def _proc_info(length: int) -> type[ctypes.Structure]:
    return _structure(
        "amdsmi_proc_info_t",
        ("name", text(length)),
        ("pid", U32),
        ("mem", U64),
        ("engine_usage", U64 * 8),
        ("gtt_mem", U64),
        ("cpu_mem", U64),
        ("vram_mem", U64),
        ("memory_reserved", U32 * 10),
        ("container_name", text(length)),
        ("reserved", U32 * (4 if length == _SHORT else 12)),
    )


_SHORT, _TEXT, _LONG = 32, 64, 256

#: What the versions of the library differ in: ROCm 6.2 and 6.3 have AMD SMI 24, ROCm 6.4 has 25, 7 has 26, 10 has 27.
#: By the number in the library's file name, which its binary interface keeps.
ASIC_INFO = {24: _asic_info(_TEXT, _SHORT), **dict.fromkeys((25, 26, 27), _asic_info(_LONG, _LONG))}
VBIOS_INFO = {
    24: _vbios_info(_TEXT, _SHORT, _SHORT),
    25: _vbios_info(_LONG, _SHORT, _LONG),
    **dict.fromkeys((26, 27), _vbios_info(_LONG, _LONG, _LONG)),
}
PROC_INFO = {24: _proc_info(_SHORT), **dict.fromkeys((25, 26, 27), _proc_info(_LONG))}

#: The versions whose structures are known, the newest first.
VERSIONS = tuple(sorted(ASIC_INFO, reverse=True))


def fields(structure: ctypes.Structure) -> dict[str, Any]:
    """Return the fields of a structure that the library filled, None for each that is not there."""
    found: dict[str, Any] = {}
    for name, kind in ((field[0], field[1]) for field in structure._fields_):
        value: Any = getattr(structure, name)
        if isinstance(value, ctypes.Array):
            items = [int(item) for item in cast("Any", value)]
            ones = (1 << 8 * ctypes.sizeof(kind) // len(items)) - 1
            found[name] = [None if item == ones else item for item in items]
        elif isinstance(value, bytes):
            found[name] = value.decode("utf-8", "replace")
        else:
            found[name] = None if value == (1 << 8 * ctypes.sizeof(kind)) - 1 else value
    return found
