"""GPUs, MIG devices and drivers of all ages."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from tests.exporter.gpus.support import about, failures
from tests.exporter.nvml.support import gpu, no_xids
from tests.exporter.support import GpuProbe, nvml_probe, starting_with
from tests.fake_nvml.fake import EVERYTHING, Scenario, build

A100, B200 = "GPU-a100", "GPU-b200"
#: Reasons of every driver whose seconds none of these two GPUs counts.
COMMON_REASONS = ("idle", "application_clocks", "hw_slowdown", "sync_boost")
#: Symbols that came with R510 to R580.
NOT_IN_R470 = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
)
NOT_IN_R535 = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetRepairStatus")


def without_facts(samples: dict[str, float], uuid: str) -> dict[str, float]:
    """Return the samples of a GPU without those that every GPU has."""
    common = {**no_xids(uuid), gpu("gpu_up", uuid): 1}
    return {
        series: value
        for series, value in about(samples, uuid).items()
        if series not in common and not series.startswith(("gpu_info", "gpu_workload"))
    }


def test_an_a100_under_r470(tmp_path: Path) -> None:
    """An old driver gives what it has, by its older functions and fields, and nothing of the rest is a failure."""
    scenario = Scenario(tmp_path / "gpus", "a100-r470.scenario")
    with nvml_probe(scenario.environment(build(tmp_path, without=NOT_IN_R470))) as probe:
        probe.collect()
        samples = probe.collect()
    old_reasons = (*COMMON_REASONS, "sw_thermal", "hw_thermal", "hw_power_brake")
    assert without_facts(samples, A100) == {
        gpu("gpu_utilization_ratio", A100): 0.8,
        gpu("gpu_memory_copy_utilization_ratio", A100): 0.3,
        gpu("gpu_memory_capacity_bytes", A100): 85_899_345_920,
        gpu("gpu_memory_used_bytes", A100): 51_539_607_552,
        gpu("gpu_memory_free_bytes", A100): 34_359_738_368,
        gpu("gpu_power_watts", A100): 350.5,
        gpu("gpu_power_limit_watts", A100): 400,
        gpu("gpu_energy_joules_total", A100): 5,
        gpu("gpu_temperature_celsius", A100, sensor="gpu"): 61,
        gpu("gpu_temperature_celsius", A100, sensor="memory"): 58,
        gpu("gpu_clock_hertz", A100, clock="sm"): 1.41e9,
        gpu("gpu_performance_state", A100): 0,
        **{gpu("gpu_clock_event_active", A100, reason=name): name == "hw_thermal" for name in old_reasons},
        gpu("gpu_clock_event_seconds_total", A100, reason="sw_power_cap"): 2,
        gpu("gpu_clock_event_seconds_total", A100, reason="thermal"): 0.5,
        gpu("gpu_ecc_volatile_errors_total", A100, severity="corrected"): 5,
        gpu("gpu_ecc_volatile_errors_total", A100, severity="uncorrected"): 0,
        gpu("gpu_ecc_mode_enabled", A100): 1,
        gpu("gpu_remapped_rows_total", A100, cause="corrected"): 0,
        **{
            gpu("gpu_row_remap_banks", A100, availability=name): 640 * (name == "max")
            for name in ("max", "high", "partial", "low", "none")
        },
        gpu("gpu_pcie_replays_total", A100): 1,
        gpu("gpu_nvlink_receive_bytes_total", A100): 20_480,
        gpu("gpu_nvlink_transmit_bytes_total", A100): 10_240,
        gpu("gpu_nvlink_errors_total", A100, error="crc_flit"): 11,
        gpu("gpu_nvlink_errors_total", A100, error="crc_data"): 12,
        gpu("gpu_nvlink_errors_total", A100, error="replay"): 13,
        gpu("gpu_nvlink_errors_total", A100, error="recovery"): 14,
        gpu("gpu_nvlink_links", A100, state="active"): 2,
        gpu("gpu_nvlink_links", A100, state="inactive"): 1,
    }
    assert failures(samples) == {}


def test_a_b200_under_r610(tmp_path: Path, fake_nvml: Path) -> None:
    """A new driver's counters of cycles and bytes are used, NVLink 5 is summed over its links, without failures."""
    scenario = Scenario(tmp_path / "gpus", "b200-r610.scenario")
    with nvml_probe(scenario.environment(fake_nvml)) as probe:
        probe.collect()
        time.sleep(SHORTEST_WINDOW)
        samples = probe.collect()
    new_reasons = (*COMMON_REASONS, "sw_power_cap", "board_limit", "reliability")
    assert without_facts(samples, B200) == {
        **{
            gpu("gpu_recovery_action", B200, action=action): action == "reboot"
            for action in ("none", "reset", "reboot", "drain_p2p", "drain_reset", "unknown")
        },
        gpu("gpu_utilization_ratio", B200): 1,
        gpu("gpu_memory_copy_utilization_ratio", B200): 0.5,
        gpu("gpu_sm_activity_ratio", B200): 0.995,
        gpu("gpu_sm_cycles_total", B200): 5e12,
        gpu("gpu_sm_active_cycles_total", B200): 4e12,
        gpu("gpu_tensor_active_cycles_total", B200): 3e12,
        gpu("gpu_temperature_celsius", B200, sensor="gpu"): 55,
        gpu("gpu_temperature_margin_celsius", B200): 31,
        **{gpu("gpu_clock_event_active", B200, reason=name): name == "reliability" for name in new_reasons},
        gpu("gpu_clock_event_seconds_total", B200, reason="sw_thermal"): 1,
        gpu("gpu_clock_event_seconds_total", B200, reason="hw_thermal"): 2,
        gpu("gpu_clock_event_seconds_total", B200, reason="hw_power_brake"): 3,
        gpu("gpu_repair_pending", B200, kind="channel"): 1,
        gpu("gpu_repair_pending", B200, kind="tpc"): 0,
        gpu("gpu_pcie_transmit_bytes_total", B200): 7e11,
        gpu("gpu_pcie_receive_bytes_total", B200): 9e11,
        gpu("gpu_nvlink_transmit_bytes_total", B200): 3000,
        gpu("gpu_nvlink_receive_bytes_total", B200): 7000,
        gpu("gpu_nvlink_errors_total", B200, error="malformed_packet"): 0,
        gpu("gpu_nvlink_errors_total", B200, error="receive"): 11,
        gpu("gpu_nvlink_errors_total", B200, error="link_recovery_failed"): 2,
        gpu("gpu_nvlink_errors_total", B200, error="symbol"): 18,
        gpu("gpu_nvlink_links", B200, state="active"): 2,
        gpu("gpu_nvlink_links", B200, state="inactive"): 0,
        gpu("gpu_fabric_state", B200, state="not_started"): 0,
        gpu("gpu_fabric_state", B200, state="in_progress"): 1,
        gpu("gpu_fabric_state", B200, state="completed"): 0,
        gpu("gpu_fabric_health", B200, condition="route_unhealthy"): 1,
        gpu("gpu_fabric_health", B200, condition="incorrect_configuration"): 1,
    }
    assert failures(samples) == {}


@pytest.mark.parametrize(
    ("driver", "missing", "absent"),
    [
        ("535.183.01", NOT_IN_R535, ("gpu_temperature_margin", "gpu_repair_pending")),
        ("550.90.07", NOT_IN_R535, ("gpu_temperature_margin", "gpu_repair_pending")),
        ("580.95.05", (), ()),
        ("595.10", (), ()),
    ],
)
def test_an_h100_under(
    tmp_path: Path, scenario: Scenario, driver: str, missing: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    """Each release gives the same series but for those whose functions it lacks."""
    scenario.write(f"system nvmlSystemGetDriverVersion {driver}", "* nvmlDeviceGetTemperature.0 64")
    with nvml_probe(scenario.environment(build(tmp_path, without=missing))) as probe:
        samples = probe.collect()
    families = {series.partition("{")[0] for series in starting_with(samples, "gpu_")}
    lacking = {name for name in ALL_OF_AN_H100 if name.startswith(absent)} if absent else set[str]()
    assert families == ALL_OF_AN_H100 - lacking
    assert failures(samples) == {}


ALL_OF_AN_H100 = {
    f"gpu_{name}"
    for name in (
        *("driver_info", "devices", "info", "up", "recovery_action", "utilization_ratio"),
        *("memory_copy_utilization_ratio", "encoder_utilization_ratio", "decoder_utilization_ratio"),
        *("jpeg_utilization_ratio", "ofa_utilization_ratio", "memory_capacity_bytes", "memory_used_bytes"),
        *("memory_free_bytes", "memory_reserved_bytes", "bar1_memory_capacity_bytes", "bar1_memory_used_bytes"),
        *("power_watts", "power_limit_watts", "power_min_limit_watts", "power_max_limit_watts"),
        *("power_default_limit_watts", "energy_joules_total", "temperature_celsius", "temperature_threshold_celsius"),
        *("temperature_margin_celsius", "clock_hertz", "clock_max_hertz", "performance_state"),
        *("clock_event_active", "clock_event_seconds_total", "ecc_volatile_errors_total"),
        *("ecc_aggregate_errors_total", "ecc_mode_enabled", "ecc_sram_threshold_exceeded", "remapped_rows_total"),
        *("row_remap_pending", "row_remap_failed", "row_remap_banks", "repair_pending", "pcie_receive_bytes_total"),
        *("pcie_transmit_bytes_total", "pcie_replays_total", "pcie_errors_total", "pcie_link_generation"),
        *("pcie_link_generation_max", "pcie_link_width", "pcie_link_width_max", "nvlink_receive_bytes_total"),
        *("nvlink_transmit_bytes_total", "nvlink_errors_total", "nvlink_links", "fabric_state", "fabric_health"),
        "xid_errors_total",
    )
}


def test_mig_devices_come_and_go(probe: GpuProbe, scenario: Scenario) -> None:
    """MIG devices are in the scrape after they are made, and gone after they are deleted; the GPU keeps its series."""
    uuid = "GPU-11111111-1111-1111-1111-111111111111"
    before = probe.gpus()
    scenario.write(*EVERYTHING)
    probe.collect()
    time.sleep(SHORTEST_WINDOW)
    samples = probe.collect()
    of_device = {"gpu_instance_id": "2", "mig_uuid": "MIG-0"}
    assert starting_with(samples, "gpu_mig_") == {
        gpu("gpu_mig_info", uuid, **of_device, compute_instance_id="0", profile="3g.40gb"): 1,
        gpu("gpu_mig_memory_capacity_bytes", uuid, **of_device): 42_949_672_960,
        gpu("gpu_mig_memory_used_bytes", uuid, **of_device): 10_737_418_240,
        gpu("gpu_mig_sm_activity_ratio", uuid, **of_device): 0.5,
        gpu("gpu_mig_sm_occupancy_ratio", uuid, **of_device): 0.25,
        gpu("gpu_mig_tensor_activity_ratio", uuid, **of_device): 0.125,
        gpu("gpu_mig_dram_bandwidth_utilization_ratio", uuid, **of_device): 0.75,
    }
    assert set(about(before, uuid)) <= set(about(samples, uuid))
    scenario.write("1 nvmlDeviceGetMigMode 1")
    assert starting_with(probe.gpus(), "gpu_mig_") == {}
    assert failures(probe.collect()) == {}


def test_mig_devices_with_gaps(probe: GpuProbe, scenario: Scenario) -> None:
    """Each MIG device has its own facts, whatever places between them are empty or do not tell who they are."""
    lines = ["0 nvmlDeviceGetMigMode 1"]
    for index in (1, 4, 6):
        lines += [
            f"0/{index} nvmlDeviceGetUUID MIG-{index}",
            f"0/{index} nvmlDeviceGetComputeInstanceId 0",
            f"0/{index} nvmlDeviceGetName NVIDIA H100 80GB HBM3 MIG {index}g.10gb",
            f"0/{index} nvmlDeviceGetMemoryInfo_v2 {index}000 0 1 {index}",
        ]
    scenario.write(*lines, "0/1 nvmlDeviceGetGpuInstanceId 11", "0/6 nvmlDeviceGetGpuInstanceId 16")
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    found = starting_with(probe.gpus(), "gpu_mig_")
    for index in (1, 6):
        of_device = {"gpu_instance_id": f"1{index}", "mig_uuid": f"MIG-{index}"}
        info = gpu("gpu_mig_info", uuid, **of_device, compute_instance_id="0", profile=f"{index}g.10gb")
        assert found.pop(info) == 1
        assert found.pop(gpu("gpu_mig_memory_capacity_bytes", uuid, **of_device)) == index * 1000
        assert found.pop(gpu("gpu_mig_memory_used_bytes", uuid, **of_device)) == index
    assert found == {}
