"""GPUs and drivers of all ages, and counters over wraps, resets and nonsense."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from laggard_exporter.gpus.counters import Counters
from laggard_exporter.gpus.session import Question
from laggard_exporter.nvml import table
from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from laggard_exporter.nvml.library import Nvml
from tests.exporter.support import GpuProbe, nvml_probe, starting_with
from tests.exporter.test_nvml import about, failures, gpu, no_xids
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


def test_activity_is_that_since_the_scrape_before(probe: GpuProbe, scenario: Scenario) -> None:
    """Two scrapes right after one another get the same newest activity, not one over too short a time."""
    probe.collect()
    time.sleep(SHORTEST_WINDOW)
    assert probe.collect()[gpu("gpu_sm_activity_ratio")] == 0.9125
    scenario.write("0 gpm.2 10")
    assert probe.collect()[gpu("gpu_sm_activity_ratio")] == 0.9125
    time.sleep(SHORTEST_WINDOW)
    assert probe.collect()[gpu("gpu_sm_activity_ratio")] == 0.1


GARBAGE = {
    "gpm.2 nan": "gpu_sm_activity_ratio",
    "gpm.5 4294967295": "gpu_tensor_activity_ratio",
    "field.3 3 9223372036854775794": "gpu_ecc_volatile_errors_total",
    "field.4 3 140737488355328": "gpu_ecc_volatile_errors_total",
    "field.143 1 2": "",  # many rows are no nonsense
    "field.145 1 4294967295": "gpu_row_remap_failed",
    "nvmlDeviceGetCurrPcieLinkWidth 4294967295": "gpu_pcie_link_width",
    "nvmlDeviceGetMemoryInfo_v2 85520809984 643825664 10234167296 18446744073709551615": "gpu_memory_used_bytes",
    "nvmlDeviceGetMarginTemperature 65535": "gpu_temperature_margin_celsius",
    "nvmlDeviceGetDecoderUtilization 4294967295": "gpu_decoder_utilization_ratio",
    "nvmlDeviceGetNumFans 0": "",
}


def test_nonsense_of_every_kind(probe: GpuProbe, scenario: Scenario) -> None:
    """Sentinels and garbage are left out and counted under their metric, each alone."""
    for line, metric in GARBAGE.items():
        before = failures(probe.collect()).get(metric, 0)
        time.sleep(SHORTEST_WINDOW if line.startswith("gpm") else 0)
        scenario.write(f"0 {line}")
        samples = probe.collect()
        assert failures(samples).get(metric, 0) == before + bool(metric), line
        assert samples[gpu("gpu_up")] == 1
        scenario.write()
        time.sleep(SHORTEST_WINDOW if line.startswith("gpm") else 0)


def test_memory_errors(probe: GpuProbe, scenario: Scenario) -> None:
    """Errors of the memory, and what becomes of their rows, are in the next scrape and change no other series."""
    before = probe.gpus()
    scenario.write(
        *("0 field.3 3 11", "0 field.4 3 2", "0 field.5 3 12", "0 field.6 3 3"),
        *("0 field.142 1 4", "0 field.143 1 5", "0 field.144 1 1", "0 field.145 1 1"),
        *("0 nvmlDeviceGetSramEccErrorStatus 1", "0 nvmlDeviceGetRowRemapperHistogram 2556 1 1 1 1"),
        *("0 nvmlDeviceGetRepairStatus 1 0", "0 field.230 1 1"),
    )
    after = probe.gpus()
    assert {series: value for series, value in after.items() if before[series] != value} == {
        gpu("gpu_ecc_volatile_errors_total", severity="corrected"): 11,
        gpu("gpu_ecc_volatile_errors_total", severity="uncorrected"): 2,
        gpu("gpu_ecc_aggregate_errors_total", severity="corrected"): 12,
        gpu("gpu_ecc_aggregate_errors_total", severity="uncorrected"): 3,
        gpu("gpu_ecc_sram_threshold_exceeded"): 1,
        gpu("gpu_remapped_rows_total", cause="corrected"): 4,
        gpu("gpu_remapped_rows_total", cause="uncorrected"): 5,
        gpu("gpu_row_remap_pending"): 1,
        gpu("gpu_row_remap_failed"): 1,
        gpu("gpu_row_remap_banks", availability="max"): 2556,
        gpu("gpu_row_remap_banks", availability="partial"): 1,
        gpu("gpu_row_remap_banks", availability="low"): 1,
        gpu("gpu_row_remap_banks", availability="none"): 1,
        gpu("gpu_repair_pending", kind="channel"): 1,
        gpu("gpu_recovery_action", action="none"): 0,
        gpu("gpu_recovery_action", action="reset"): 1,
    }
    # The driver counts from 0 again after a reload, and volatile errors are those that were told and those since.
    scenario.write("system generation 2", "0 field.3 3 1")
    samples = probe.gpus()
    assert samples[gpu("gpu_ecc_volatile_errors_total", severity="corrected")] == 12
    assert samples[gpu("gpu_ecc_volatile_errors_total", severity="uncorrected")] == 2


def test_an_action_that_is_not_known(probe: GpuProbe, scenario: Scenario) -> None:
    """A number that a later driver may give is unknown, not none."""
    scenario.write("0 field.230 1 99")
    samples = probe.collect()
    assert samples[gpu("gpu_recovery_action", action="unknown")] == 1
    assert samples[gpu("gpu_recovery_action", action="none")] == 0


def test_counters_over_a_wrap_and_a_reload(probe: GpuProbe, scenario: Scenario) -> None:
    """A 32-bit word that wraps, and a counter that begins again with the driver, go on without a fall or a jump."""
    receive, energy = gpu("gpu_pcie_receive_bytes_total"), gpu("gpu_energy_joules_total")
    scenario.write("0 field.198 1 4294967000")
    assert probe.collect()[receive] == 4_294_967_000
    time.sleep(SHORTEST_WINDOW)
    scenario.write("0 field.198 1 704")
    samples = probe.collect()
    assert samples[receive] == 4_294_968_000
    assert samples[energy] == 123_456.789
    scenario.write("0 field.198 1 1000", "0 field.83 3 2000", "system generation 2")
    samples = probe.collect()
    assert samples[energy] == 123_458.789
    assert samples[receive] == 4_294_968_296


#: Seconds between two scrapes on the clock of :func:`fixed_windows`.
INTERVAL = 15.0


@pytest.fixture
def fixed_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each window of the performance monitor as long as the test says, whatever the machine does meanwhile."""
    receive = Nvml.receive

    def timed(self: Nvml, question: Question) -> list[Any]:
        return [
            (INTERVAL, *value[1:]) if request.function == table.GPM and value and value[0] else value
            for request, value in zip(question.batch.requests, receive(self, question), strict=True)
        ]

    monkeypatch.setattr(Nvml, "receive", timed)


@pytest.mark.parametrize("gigabytes_a_second", [0.0, 0.2, 0.3, 30.0, 63.0])
@pytest.mark.usefixtures("fixed_windows")
def test_several_wraps_between_two_scrapes(probe: GpuProbe, scenario: Scenario, gigabytes_a_second: float) -> None:
    """Where the performance monitor tells the rate, every byte is counted, however often the word wraps."""
    receive = gpu("gpu_pcie_receive_bytes_total")
    scenario.write("0 field.198 1 1000")
    assert probe.collect()[receive] == 1000
    time.sleep(SHORTEST_WINDOW)
    moved = int(gigabytes_a_second * 1e9 * INTERVAL) + 7
    # What the monitor says is a little off.
    scenario.write(f"0 field.198 1 {(1000 + moved) % (1 << 32)}", f"0 gpm.21 {moved * 1.001 / (1 << 20) / INTERVAL}")
    assert probe.collect()[receive] == 1000 + moved
    # Another scrape at once gets the same window again; the bytes since then are those of the next.
    scenario.write(f"0 field.198 1 {(2000 + moved) % (1 << 32)}", f"0 gpm.21 {moved / (1 << 20) / INTERVAL}")
    assert probe.collect()[receive] == 1000 + moved


def test_wraps_that_nobody_can_see(probe: GpuProbe, scenario: Scenario) -> None:
    """A 32-bit counter is absent without the rate that tells how often it wrapped, and counts again with it."""
    receive, sent = gpu("gpu_pcie_receive_bytes_total"), gpu("gpu_pcie_transmit_bytes_total")
    without = ("0 nvmlGpmQueryDeviceSupport !3", "0 field.198 1 5000")
    scenario.write(*without, "0 field.197 3 7000")
    samples = probe.collect()
    assert receive not in samples
    assert samples[sent] == 7000, "a word of 64 bits needs no rate"
    scenario.write("0 field.198 1 5000")
    assert probe.collect()[receive] == 5000
    time.sleep(SHORTEST_WINDOW)
    scenario.write("0 field.198 1 6000", "0 gpm.21 !3")
    assert receive not in probe.collect()
    time.sleep(SHORTEST_WINDOW)
    scenario.write("0 field.198 1 7500", "0 gpm.21 0")
    assert probe.collect()[receive] == 6500, "what came while nobody knew how much is not counted"


def test_counters_alone() -> None:
    """Growth, wrap, reset, several wraps, and counters apart from one another."""
    counters = Counters()
    assert [counters.widen("a", raw) for raw in (5, 7, 3, 4)] == [5, 7, 10, 11]
    word = 1 << 32
    assert [counters.widen("b", raw, word=True) for raw in (word - 10, 5, 2)] == [word - 10, word + 5, word + 7]
    assert counters.widen("c", 100, word=True, expected=9 * word) == 100, "nothing grew before the first reading"
    assert counters.widen("c", 150, word=True, expected=3 * word + 40) == 3 * word + 150
    assert counters.widen("c", 160, word=True, expected=0) == 3 * word + 160


def test_a_link_that_does_not_tell(probe: GpuProbe, scenario: Scenario) -> None:
    """A sum over links is absent while one of them does not answer: it would look like a reset."""
    crc, active = gpu("gpu_nvlink_errors_total", error="crc"), gpu("gpu_nvlink_links", state="active")
    assert probe.collect()[crc] == 0
    scenario.write("0 field.163.5 !3", "0 field.165.5 1 0")
    samples = probe.collect()
    assert crc not in samples
    assert (samples[active], samples[gpu("gpu_nvlink_links", state="inactive")]) == (17, 1)


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
