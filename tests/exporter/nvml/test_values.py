"""What the NVML collector says of a GPU: the real nvidia-ml-py over a compiled fake of the driver's library."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from laggard_exporter.gpus.conventions import GPU_DRIVER_INFO, GPU_FAMILIES, GPU_INFO
from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from laggard_exporter.nvml.collector import FUNCTIONS
from laggard_exporter.nvml.library import FIELD_VALUES
from laggard_exporter.nvml.reading import CHECKED
from laggard_exporter.nvml.table import CLOCK_EVENTS, DRIVER_FACTS, FACTS, READINGS, Call
from tests.exporter.gpus.support import about, failures
from tests.exporter.nvml.support import BUSY, BUSY_INFO, IDLE, gpu, no_xids
from tests.exporter.support import GpuProbe, lasting, nvml_probe, starting_with
from tests.fake_nvml.fake import Scenario

RECOVERY_ACTIONS = ("none", "reset", "reboot", "drain_p2p", "drain_reset", "unknown")
PCIE_ERRORS = ("correctable", "non_fatal", "fatal", "unsupported_request")


def test_a_healthy_gpu(probe: GpuProbe) -> None:
    """Every value of a GPU arrives in base units, exactly, with static facts in the info metric alone."""
    probe.collect()
    time.sleep(SHORTEST_WINDOW)
    assert about(probe.collect(), BUSY) == {
        BUSY_INFO: 1,
        gpu("gpu_up"): 1,
        gpu("gpu_utilization_ratio"): 0.93,
        gpu("gpu_memory_copy_utilization_ratio"): 0.41,
        gpu("gpu_memory_capacity_bytes"): 85_520_809_984,
        gpu("gpu_memory_used_bytes"): 74_642_817_024,
        gpu("gpu_memory_free_bytes"): 10_234_167_296,
        gpu("gpu_memory_reserved_bytes"): 643_825_664,
        gpu("gpu_power_watts"): 512.345,
        gpu("gpu_power_limit_watts"): 700,
        gpu("gpu_energy_joules_total"): 123_456.789,
        gpu("gpu_temperature_celsius", sensor="gpu"): 64,
        gpu("gpu_temperature_celsius", sensor="memory"): 71,
        gpu("gpu_clock_hertz", clock="sm"): 1.755e9,
        gpu("gpu_clock_hertz", clock="memory"): 2.619e9,
        gpu("gpu_clock_max_hertz", clock="sm"): 1.98e9,
        gpu("gpu_clock_max_hertz", clock="memory"): 2.619e9,
        gpu("gpu_performance_state"): 0,
        gpu("gpu_clock_event_active", reason="idle"): 0,
        gpu("gpu_clock_event_active", reason="application_clocks"): 0,
        gpu("gpu_clock_event_active", reason="hw_slowdown"): 0,
        gpu("gpu_clock_event_seconds_total", reason="sw_power_cap"): 1.5,
        gpu("gpu_clock_event_seconds_total", reason="sync_boost"): 0,
        gpu("gpu_clock_event_seconds_total", reason="board_limit"): 0,
        gpu("gpu_clock_event_seconds_total", reason="low_utilization"): 0,
        gpu("gpu_clock_event_seconds_total", reason="reliability"): 0,
        gpu("gpu_clock_event_seconds_total", reason="sw_thermal"): 0.25,
        gpu("gpu_clock_event_seconds_total", reason="hw_thermal"): 0,
        gpu("gpu_clock_event_seconds_total", reason="hw_power_brake"): 0,
        **{gpu("gpu_recovery_action", action=action): action == "none" for action in RECOVERY_ACTIONS},
        gpu("gpu_encoder_utilization_ratio"): 0,
        gpu("gpu_decoder_utilization_ratio"): 0.03,
        gpu("gpu_jpeg_utilization_ratio"): 0,
        gpu("gpu_ofa_utilization_ratio"): 0,
        gpu("gpu_graphics_activity_ratio"): 0.985,
        gpu("gpu_sm_activity_ratio"): 0.9125,
        gpu("gpu_sm_occupancy_ratio"): 0.445,
        gpu("gpu_tensor_activity_ratio"): 0.6375,
        gpu("gpu_dram_bandwidth_utilization_ratio"): 0.38125,
        gpu("gpu_pipe_activity_ratio", pipe="fp64"): 0.03,
        gpu("gpu_pipe_activity_ratio", pipe="fp32"): 0.14,
        gpu("gpu_pipe_activity_ratio", pipe="fp16"): 0.05,
        gpu("gpu_bar1_memory_capacity_bytes"): 137_438_953_472,
        gpu("gpu_bar1_memory_used_bytes"): 2_097_152,
        gpu("gpu_power_min_limit_watts"): 200,
        gpu("gpu_power_max_limit_watts"): 700,
        gpu("gpu_power_default_limit_watts"): 700,
        gpu("gpu_temperature_threshold_celsius", threshold="slowdown"): 89,
        gpu("gpu_temperature_threshold_celsius", threshold="memory_max"): 95,
        gpu("gpu_temperature_margin_celsius"): 23,
        gpu("gpu_ecc_volatile_errors_total", severity="corrected"): 0,
        gpu("gpu_ecc_volatile_errors_total", severity="uncorrected"): 0,
        gpu("gpu_ecc_aggregate_errors_total", severity="corrected"): 0,
        gpu("gpu_ecc_aggregate_errors_total", severity="uncorrected"): 0,
        gpu("gpu_ecc_mode_enabled"): 1,
        gpu("gpu_ecc_sram_threshold_exceeded"): 0,
        gpu("gpu_remapped_rows_total", cause="corrected"): 1,
        gpu("gpu_remapped_rows_total", cause="uncorrected"): 0,
        gpu("gpu_row_remap_pending"): 0,
        gpu("gpu_row_remap_failed"): 0,
        gpu("gpu_row_remap_banks", availability="max"): 2559,
        gpu("gpu_row_remap_banks", availability="high"): 1,
        gpu("gpu_row_remap_banks", availability="partial"): 0,
        gpu("gpu_row_remap_banks", availability="low"): 0,
        gpu("gpu_row_remap_banks", availability="none"): 0,
        gpu("gpu_repair_pending", kind="channel"): 0,
        gpu("gpu_repair_pending", kind="tpc"): 0,
        gpu("gpu_pcie_receive_bytes_total"): 5_000_000,
        gpu("gpu_pcie_transmit_bytes_total"): 3_000_000,
        gpu("gpu_pcie_replays_total"): 2,
        **{gpu("gpu_pcie_errors_total", error=error): 4 * (error == "correctable") for error in PCIE_ERRORS},
        gpu("gpu_pcie_link_generation"): 5,
        gpu("gpu_pcie_link_generation_max"): 5,
        gpu("gpu_pcie_link_width"): 16,
        gpu("gpu_pcie_link_width_max"): 16,
        gpu("gpu_nvlink_receive_bytes_total"): 2_048_000,
        gpu("gpu_nvlink_transmit_bytes_total"): 1_024_000,
        gpu("gpu_nvlink_errors_total", error="replay"): 7,
        gpu("gpu_nvlink_errors_total", error="recovery"): 0,
        gpu("gpu_nvlink_errors_total", error="crc"): 0,
        gpu("gpu_nvlink_links", state="active"): 18,
        gpu("gpu_nvlink_links", state="inactive"): 0,
        gpu("gpu_fabric_state", state="not_started"): 0,
        gpu("gpu_fabric_state", state="in_progress"): 0,
        gpu("gpu_fabric_state", state="completed"): 1,
        gpu("gpu_fabric_health", condition="degraded_bandwidth"): 0,
        gpu("gpu_fabric_health", condition="route_recovery"): 0,
        gpu("gpu_fabric_health", condition="route_unhealthy"): 0,
        gpu("gpu_fabric_health", condition="access_timeout_recovery"): 0,
        gpu("gpu_fabric_health", condition="incorrect_configuration"): 0,
        **no_xids(BUSY),
    }


def test_details(fake_nvml: Path, scenario: Scenario) -> None:
    """The flag for details adds these series to those of a healthy GPU, and takes none; without it there are 107."""
    with (
        nvml_probe(scenario.environment(fake_nvml)) as probe,
        nvml_probe(scenario.environment(fake_nvml), details=True) as detailed,
    ):
        for each in (probe, detailed):
            each.collect()
        time.sleep(SHORTEST_WINDOW)
        usual, all_of_it = about(probe.collect(), BUSY), about(detailed.collect(), BUSY)
    assert len(usual) == 107
    errors = ("nak_received", "receiver", "bad_tlp", "nak_sent", "bad_dllp", "lcrc", "lane")
    assert all_of_it == usual | {
        gpu("gpu_clock_hertz", clock="graphics"): 1.755e9,
        gpu("gpu_clock_hertz", clock="video"): 1.365e9,
        gpu("gpu_clock_max_hertz", clock="graphics"): 1.98e9,
        gpu("gpu_clock_max_hertz", clock="video"): 1.545e9,
        gpu("gpu_clock_event_active", reason="sw_power_cap"): 1,
        gpu("gpu_clock_event_active", reason="sync_boost"): 0,
        gpu("gpu_clock_event_active", reason="sw_thermal"): 1,
        gpu("gpu_clock_event_active", reason="hw_thermal"): 0,
        gpu("gpu_clock_event_active", reason="hw_power_brake"): 0,
        gpu("gpu_clock_event_active", reason="display_clocks"): 0,
        gpu("gpu_pipe_activity_ratio", pipe="int"): 0.12,
        gpu("gpu_pipe_activity_ratio", pipe="dfma"): 0.01,
        gpu("gpu_pipe_activity_ratio", pipe="hmma"): 0.605,
        gpu("gpu_pipe_activity_ratio", pipe="imma"): 0.02,
        gpu("gpu_temperature_threshold_celsius", threshold="shutdown"): 92,
        gpu("gpu_temperature_threshold_celsius", threshold="gpu_max"): 87,
        **{gpu("gpu_pcie_errors_total", error=error): 0 for error in errors},
    }
    assert len(all_of_it) == 130


def test_a_reason_without_its_seconds(probe: GpuProbe, scenario: Scenario) -> None:
    """A reason for lower clocks whose seconds a driver does not count is told as active or not."""
    active = gpu("gpu_clock_event_active", reason="sw_thermal")
    assert active not in probe.collect()
    scenario.write("0 field.269 !3")
    assert probe.collect()[active] == 1


def test_counters_of_failures_start_at_zero(probe: GpuProbe) -> None:
    """Each counter is there with 0 before anything failed, so that increase() sees the first failure."""
    samples = probe.collect()
    errors = starting_with(samples, "laggard_exporter_nvml_errors_total{")
    assert errors == {
        f'laggard_exporter_nvml_errors_total{{function="{name}"}}': 0 for name in ("nvmlInitWithFlags", *FUNCTIONS)
    }
    rejected = starting_with(samples, "laggard_exporter_nvml_values_rejected_total{")
    assert rejected == {
        f'laggard_exporter_nvml_values_rejected_total{{metric="{family.name}"}}': 0 for family in CHECKED
    }
    timeouts = starting_with(samples, "laggard_exporter_nvml_call_timeouts_total{")
    assert len(timeouts) == len(errors)
    assert set(timeouts.values()) == {0}


def test_unsupported_is_absent(probe: GpuProbe, scenario: Scenario) -> None:
    """What a GPU does not support is absent, never 0, and no failure; the other GPU keeps it."""
    complete = probe.gpus()
    scenario.write(
        "1 nvmlDeviceGetUtilizationRates !3",
        "1 field.82 !3",
        "1 field.83 !2",  # so drivers answer for a number that they do not know
        "1 field.269 !25",
        "1 nvmlDeviceGetEnforcedPowerLimit !26",
        "1 nvmlDeviceGetCurrentClocksEventReasons !3",
        "1 nvmlDeviceGetPerformanceState 32",  # NVML's word for unknown
    )
    samples = probe.collect()
    missing = {
        gpu("gpu_utilization_ratio", IDLE),
        gpu("gpu_memory_copy_utilization_ratio", IDLE),
        gpu("gpu_temperature_celsius", IDLE, sensor="memory"),
        gpu("gpu_energy_joules_total", IDLE),
        gpu("gpu_clock_event_seconds_total", IDLE, reason="sw_thermal"),
        gpu("gpu_power_limit_watts", IDLE),
        gpu("gpu_performance_state", IDLE),
        *(series for series in complete if series.startswith("gpu_clock_event_active") and IDLE in series),
    }
    assert lasting(samples) == {series: value for series, value in complete.items() if series not in missing}
    assert failures(samples) == {}


GARBAGE = {
    "nvmlDeviceGetUtilizationRates 101 5": gpu("gpu_utilization_ratio"),
    "nvmlDeviceGetUtilizationRates 4294967295 5": gpu("gpu_utilization_ratio"),
    "field.186 1 4294967295": gpu("gpu_power_watts"),
    "field.186 0 nan": gpu("gpu_power_watts"),
    "field.186 5 -1": gpu("gpu_power_watts"),
    "field.83 3 0xFFFFFFFFFFFFFFFF": gpu("gpu_energy_joules_total"),
    "nvmlDeviceGetTemperatureV.0 65535": gpu("gpu_temperature_celsius", sensor="gpu"),
    "nvmlDeviceGetClockInfo.1 4294967295": gpu("gpu_clock_hertz", clock="sm"),
    "nvmlDeviceGetMemoryInfo_v2 18446744073709551615 1 1 1": gpu("gpu_memory_capacity_bytes"),
    # Registers of a device that left the bus.
    "field.4 3 4294967295": gpu("gpu_ecc_volatile_errors_total", severity="uncorrected"),
    "field.94 1 4294967295": gpu("gpu_pcie_replays_total"),
    "field.180 1 4294967295": gpu("gpu_pcie_errors_total", error="fatal"),
    "field.161.3 3 4294967295": gpu("gpu_nvlink_errors_total", error="replay"),
    "field.162.3 3 0xFFFFFFFFFFFFFFFF": gpu("gpu_nvlink_errors_total", error="recovery"),
}


def test_garbage_is_rejected(probe: GpuProbe, scenario: Scenario) -> None:
    """A value that cannot be true is absent and counted under its metric; everything else stays."""
    complete = set(probe.gpus())
    rejected: Counter[str] = Counter()
    for line, series in GARBAGE.items():
        scenario.write(f"0 {line}")
        rejected[series.partition("{")[0]] += 1
        samples = probe.collect()
        assert complete - set(samples) == {series}, line
        assert failures(samples) == rejected, line
        assert samples[gpu("gpu_up")] == 1, line


def test_an_impossible_word_of_clock_events(probe: GpuProbe, scenario: Scenario) -> None:
    """A word of all ones is no word of reasons: none is exported."""
    scenario.write("0 nvmlDeviceGetCurrentClocksEventReasons 0xFFFFFFFF")
    samples = probe.collect()
    assert starting_with(about(samples, BUSY), "gpu_clock_event_active") == {}
    assert failures(samples) == {"gpu_clock_event_active": 1}


def test_every_value_type_of_fields(probe: GpuProbe, scenario: Scenario) -> None:
    """A field value is read from the member of the union that its type names."""
    values = {"0 0.5": 0.0005, "1 7": 0.007, "2 8": 0.008, "3 9": 0.009, "4 10": 0.01, "5 11": 0.011, "6 12": 0.012}
    for value, watts in values.items():
        scenario.write(f"0 field.186 {value}")
        assert probe.gpus()[gpu("gpu_power_watts")] == watts, value


def test_an_unknown_value_type(probe: GpuProbe, scenario: Scenario) -> None:
    """A value type that we do not know is a failure, not a guess; the next source is asked."""
    scenario.write("0 field.186 9 5", "0 nvmlDeviceGetPowerUsage 300000")
    samples = probe.collect()
    assert samples[gpu("gpu_power_watts")] == 300
    assert failures(samples) == {FIELD_VALUES: 1}


def test_a_name_that_is_no_text(probe: GpuProbe, scenario: Scenario) -> None:
    """Bytes that are no UTF-8 cost the GPU this one fact, not its series."""
    scenario.write("0 nvmlDeviceGetName \udcff\udcfe")
    samples = probe.collect()
    assert BUSY_INFO.replace("NVIDIA H100 80GB HBM3", "") in samples
    assert failures(samples) == {"nvmlDeviceGetName": 1}


@pytest.mark.parametrize("parts", ["0 0 0", "0 5 7"])
def test_a_memory_of_which_there_is_none(probe: GpuProbe, scenario: Scenario, parts: str) -> None:
    """A structure about memory whose total is 0 says nothing: its parts are absent, and nothing else is."""
    before = probe.collect()
    scenario.write(
        f"0 nvmlDeviceGetMemoryInfo_v2 {parts} 0",
        f"0 nvmlDeviceGetMemoryInfo {parts}",
        "0 nvmlDeviceGetBAR1MemoryInfo 0 0 0",
    )
    after = probe.collect()
    gone = {series for series in before.keys() - after.keys() if "GPU-0" in series}
    assert {series.partition("{")[0] for series in gone} == {
        "gpu_memory_capacity_bytes", "gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_memory_reserved_bytes",
        "gpu_bar1_memory_capacity_bytes", "gpu_bar1_memory_used_bytes",
    }  # fmt: skip


def test_help_names_the_source() -> None:
    """The help of a GPU metric names each function and field that it is read from."""
    for reading in (*READINGS, CLOCK_EVENTS):
        for source in reading.sources:
            text = source.function if isinstance(source, Call) else f"{source.number} "
            assert text in reading.family.help, reading.family.name
    assert [family.name for family in GPU_FAMILIES if "NVML: " not in family.help] == []
    info = (*FACTS.values(), *map(Call, DRIVER_FACTS.values()))
    helps = GPU_INFO.help + GPU_DRIVER_INFO.help
    assert [call.function for call in info if call.function not in helps] == []
