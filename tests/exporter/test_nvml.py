"""The NVML collector through the real nvidia-ml-py, over a compiled fake of the driver's library."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pynvml
import pytest

from laggard_exporter.gpus.conventions import GPU_DRIVER_INFO, GPU_FAMILIES, GPU_INFO
from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from laggard_exporter.nvml.collector import FUNCTIONS
from laggard_exporter.nvml.library import FIELD_VALUES, ReturnCode
from laggard_exporter.nvml.reading import CHECKED
from laggard_exporter.nvml.table import CLOCK_EVENTS, DRIVER_FACTS, FACTS, READINGS, Call
from tests.exporter.support import GpuProbe, lasting, nvml_probe, series_name, starting_with
from tests.fake_nvml.fake import Scenario, build

BUSY = "GPU-00000000-0000-0000-0000-000000000000"
IDLE = "GPU-11111111-1111-1111-1111-111111111111"
STATUS = "laggard_exporter_nvml_status"


def gpu(name: str, uuid: str = BUSY, /, **labels: str) -> str:
    """Return the name of a GPU's series."""
    return series_name(name, {"uuid": uuid, **labels}.items())


def about(samples: dict[str, float], uuid: str) -> dict[str, float]:
    """Return the samples of one GPU."""
    return {series: value for series, value in samples.items() if f'uuid="{uuid}"' in series}


def status(samples: dict[str, float]) -> str:
    """Return the one state of the session that is 1."""
    (series,) = (series for series, value in samples.items() if series.startswith(STATUS) and value)
    return series.partition('status="')[2].removesuffix('"}')


def failures(samples: dict[str, float]) -> dict[str, float]:
    """Return the failed calls by function and the rejected values by metric, without zeros."""
    counters = ("laggard_exporter_nvml_errors_total{", "laggard_exporter_nvml_values_rejected_total{")
    return {series.split('"')[1]: value for series, value in samples.items() if series.startswith(counters) and value}


RECOVERY_ACTIONS = ("none", "reset", "reboot", "drain_p2p", "drain_reset", "unknown")
PCIE_ERRORS = ("correctable", "non_fatal", "fatal", "unsupported_request")


def no_xids(uuid: str) -> dict[str, float]:
    """Return the counters of grave errors of a GPU that had none."""
    codes = {48: "critical", 62: "critical", 64: "critical", 74: "critical", 79: "critical", 94: "warning"}
    codes |= {95: "critical", 119: "critical", 120: "critical"}
    return {gpu("gpu_xid_errors_total", uuid, xid=str(xid), tier=tier): 0 for xid, tier in codes.items()}


BUSY_INFO = gpu(
    "gpu_info",
    index="0",
    name="NVIDIA H100 80GB HBM3",
    pci_bus_id="00000000:1B:00.0",
    serial="1650523000000",
    vbios="96.00.89.00.01",
    arch="hopper",
    numa_node="0",
)


#: What is left of a GPU that is lost: its identity, and that it is lost.
LOST = {BUSY_INFO: 1, gpu("gpu_up"): 0, **no_xids(BUSY)}


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


def test_the_node(probe: GpuProbe) -> None:
    """Driver, count and session are exported once per node, and nothing went wrong on a healthy one."""
    samples = probe.collect()
    assert {series: value for series, value in samples.items() if "uuid=" not in series and value} == {
        'gpu_driver_info{cuda="13.0",driver="580.95.05",host_name="node-1",nvml="13.580.95.05"}': 1,
        'gpu_devices{source="nvml"}': 2,
        "laggard_exporter_nvml_available": 1,
        'laggard_exporter_nvml_status{host_name="node-1",status="available"}': 1,
    }
    assert len(about(samples, IDLE)) == len(about(samples, BUSY))


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


def test_a_failing_function(probe: GpuProbe, scenario: Scenario) -> None:
    """A failure that is not a lack of support is counted at every scrape and takes only its own series."""
    complete = probe.gpus()
    scenario.write("0 nvmlDeviceGetUtilizationRates !999", "0 field.83 !10", "0 nvmlDeviceGetEnforcedPowerLimit !4")
    probe.collect()
    samples = probe.collect()
    assert failures(samples) == {
        "nvmlDeviceGetUtilizationRates": 2,
        FIELD_VALUES: 2,
        "nvmlDeviceGetEnforcedPowerLimit": 2,
    }
    assert set(complete) - set(samples) == {
        gpu("gpu_utilization_ratio"),
        gpu("gpu_memory_copy_utilization_ratio"),
        gpu("gpu_energy_joules_total"),
        gpu("gpu_power_limit_watts"),
    }


def test_a_name_that_is_no_text(probe: GpuProbe, scenario: Scenario) -> None:
    """Bytes that are no UTF-8 cost the GPU this one fact, not its series."""
    scenario.write("0 nvmlDeviceGetName \udcff\udcfe")
    samples = probe.collect()
    assert BUSY_INFO.replace("NVIDIA H100 80GB HBM3", "") in samples
    assert failures(samples) == {"nvmlDeviceGetName": 1}


def test_a_lost_gpu(probe: GpuProbe, scenario: Scenario) -> None:
    """A GPU lost under way is down and keeps its identity and nothing else; it is up again when it comes back."""
    before = probe.gpus()
    for code in (ReturnCode.GPU_IS_LOST, ReturnCode.RESET_REQUIRED, ReturnCode.GPU_NOT_FOUND):
        scenario.write(f"0 * !{code}")
        assert about(probe.gpus(), BUSY) == LOST, code
        after = probe.gpus(later=31)
        assert about(after, BUSY) == LOST, code
        assert about(after, IDLE) == about(before, IDLE), code
        assert after['gpu_devices{source="nvml"}'] == 2, code
        scenario.write()
        assert probe.gpus(later=31) == before, code


def test_a_gpu_that_answers_nothing(probe: GpuProbe, scenario: Scenario) -> None:
    """A GPU whose every call fails with an unknown error is down, whatever NVML calls it."""
    probe.collect()
    scenario.write("0 * !999")
    assert about(probe.gpus(), BUSY) == LOST


def test_a_gpu_that_was_never_there(probe: GpuProbe, scenario: Scenario) -> None:
    """A GPU that is lost from the start has no identity: the count tells that one is missing, until it comes."""
    scenario.write("0 * !15")
    samples = probe.gpus()
    assert about(samples, BUSY) == {}
    assert samples['gpu_devices{source="nvml"}'] == 2
    scenario.write()
    assert about(probe.gpus(), BUSY) == {}, "handles are expensive: not asked again at every scrape"
    assert probe.gpus(later=31)[gpu("gpu_up")] == 1


def test_a_gpu_that_left_the_enumeration(probe: GpuProbe, scenario: Scenario) -> None:
    """A GPU that NVML no longer counts is down, not gone, and the GPU that took its index is not mixed up with it."""
    before = probe.gpus()
    moved = {series.replace('index="1"', 'index="0"'): value for series, value in about(before, IDLE).items()}
    lines = [line for line in scenario.path.read_text().splitlines() if line.startswith("1 ")]
    scenario.write("system gpus 1", *(f"0 {line[2:]}" for line in lines))
    samples = probe.gpus()
    assert about(samples, IDLE) == moved
    assert about(samples, BUSY) == LOST
    assert samples['gpu_devices{source="nvml"}'] == 1
    scenario.write()
    assert probe.gpus() == before


def test_handles_are_cached(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """Handles and static facts are asked for once, and what several series share is one call per scrape."""
    trace = tmp_path / "trace"
    with nvml_probe({**scenario.environment(fake_nvml), "FAKE_NVML_TRACE": str(trace)}) as probe:
        for _ in range(3):
            probe.collect()
    calls = Counter(trace.read_text().splitlines())
    once = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetSerial")
    assert {calls[f"{index} {function}"] for function in once for index in (0, 1)} == {1}
    each_scrape = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2")
    assert {calls[f"{index} {function}"] for function in each_scrape for index in (0, 1)} == {3}
    assert calls["0 nvmlDeviceGetFieldValues"] == 3 + 2, "twice to learn which NVLinks there are"
    assert calls["0 nvmlDeviceGetPowerUsage"] == 0, "the fallback is not asked where the field has the value"


def test_a_lost_gpu_gets_a_new_handle(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """The handle of a lost GPU is not used again: after a reset it may belong to nothing."""
    trace = tmp_path / "trace"
    with nvml_probe({**scenario.environment(fake_nvml), "FAKE_NVML_TRACE": str(trace)}) as probe:
        probe.collect()
        scenario.write("0 * !15")
        probe.collect()
        trace.unlink()
        probe.collect()
        assert [call for call in trace.read_text().splitlines() if call.startswith("0 ")] == []
        scenario.write()
        assert probe.collect(later=31)[gpu("gpu_up")] == 1
    assert Counter(trace.read_text().splitlines())["0 nvmlDeviceGetHandleByIndex_v2"] == 1


def test_clock_event_fields_of_the_driver(probe: GpuProbe, scenario: Scenario) -> None:
    """Before R580 the fields 269 to 271 mean something else: there the one thermal reason is exported instead."""
    always = {"sw_power_cap": 1.5, "sync_boost": 0, "board_limit": 0, "low_utilization": 0, "reliability": 0}
    releases = {
        "580.65.06": {"sw_thermal": 0.25, "hw_thermal": 0, "hw_power_brake": 0},
        "575.57.08": {"thermal": 4},
        "535.161.08": {"thermal": 4},
    }
    for generation, (driver, reasons) in enumerate(releases.items(), 2):
        scenario.write(
            f"system generation {generation}",
            f"system nvmlSystemGetDriverVersion {driver}",
            "0 field.75 3 4000000000",
        )
        assert starting_with(about(probe.gpus(), BUSY), "gpu_clock_event_seconds_total") == {
            gpu("gpu_clock_event_seconds_total", reason=reason): value for reason, value in (always | reasons).items()
        }, driver


def test_clock_event_bits_of_the_driver(fake_nvml: Path, scenario: Scenario) -> None:
    """Reasons that only newer drivers know are absent on older ones, and there where the driver says it knows them."""
    scenario.write("0 nvmlDeviceGetSupportedClocksEventReasons 0x7ff", "0 nvmlDeviceGetCurrentClocksEventReasons 0x7DA")
    with nvml_probe(scenario.environment(fake_nvml), details=True) as probe:
        active = starting_with(about(probe.gpus(), BUSY), "gpu_clock_event_active")
    assert {series.split('"')[1]: value for series, value in active.items()} == {
        "idle": 0,
        "application_clocks": 1,
        "sw_power_cap": 0,
        "hw_slowdown": 1,
        "sync_boost": 1,
        "sw_thermal": 0,
        "hw_thermal": 1,
        "hw_power_brake": 1,
        "display_clocks": 1,
        "board_limit": 1,
        "reliability": 1,
    }


def test_a_driver_without_newer_symbols(tmp_path: Path, scenario: Scenario) -> None:
    """A symbol that the library lacks is no failure: the older function is asked, or the series is absent."""
    library = build(tmp_path, without=["nvmlDeviceGetTemperatureV", "nvmlDeviceGetMemoryInfo_v2"])
    scenario.write("0 nvmlDeviceGetTemperature.0 55", "0 field.186 !2", "0 nvmlDeviceGetPowerUsage 250000")
    with nvml_probe(scenario.environment(library)) as probe:
        samples = probe.collect()
    assert samples[gpu("gpu_temperature_celsius", sensor="gpu")] == 55
    assert samples[gpu("gpu_power_watts")] == 250
    assert starting_with(samples, "gpu_memory_capacity_bytes") == {}
    assert failures(samples) == {}


def test_nvml_that_can_not_be_opened(probe: GpuProbe, scenario: Scenario) -> None:
    """Why NVML does not open is a state, not a failure; it is tried again after a while and then found."""
    reasons = {
        ReturnCode.DRIVER_NOT_LOADED: "driver_not_loaded",
        ReturnCode.LIB_RM_VERSION_MISMATCH: "version_mismatch",
        ReturnCode.NO_PERMISSION: "no_permission",
        999: "error",
    }
    for code, reason in reasons.items():
        scenario.write(f"system nvmlInitWithFlags !{code}")
        samples = probe.collect(later=30)
        assert starting_with(samples, "gpu_") == {}
        assert samples["laggard_exporter_nvml_available"] == 0
        assert status(samples) == reason
        assert failures(samples) == {}
    scenario.write()
    assert status(probe.collect(later=29)) == "error", "a driver is not asked for at every scrape"
    samples = probe.collect(later=1)
    assert status(samples) == "available"
    assert samples[gpu("gpu_up")] == 1


def test_a_node_without_nvml(tmp_path: Path) -> None:
    """Without the library the collector works and says so."""
    with nvml_probe({"LD_LIBRARY_PATH": str(tmp_path)}) as probe:
        samples = probe.collect()
        assert samples == probe.collect(later=31)
    assert status(samples) == "library_not_found"
    assert samples["laggard_exporter_nvml_available"] == 0
    assert starting_with(samples, "gpu_") == {}


def test_a_driver_loaded_again(probe: GpuProbe, scenario: Scenario) -> None:
    """After the driver was replaced the same scrape opens a new session and reads versions and facts again."""
    before = probe.gpus()
    scenario.write(
        "system generation 2", "system nvmlSystemGetDriverVersion 590.10", "* nvmlDeviceGetVbiosVersion 96.00.99"
    )
    after = probe.gpus()
    renewed = {
        series.replace('driver="580.95.05"', 'driver="590.10"').replace("96.00.89.00.01", "96.00.99"): value
        for series, value in before.items()
    }
    assert after == renewed


def test_a_session_that_does_not_last(probe: GpuProbe, scenario: Scenario) -> None:
    """A driver that ends every session is an error and not a loop; GPUs are not called lost for it."""
    probe.collect()
    scenario.write("system gpus !1")
    samples = probe.collect()
    assert status(samples) == "error"
    assert starting_with(samples, "gpu_") == {}
    scenario.write()
    assert status(probe.collect()) == "error"
    assert status(probe.collect(later=31)) == "available"


def test_nvml_unloaded_under_way(probe: GpuProbe, scenario: Scenario) -> None:
    """When the driver is unloaded the GPUs are unknown, not lost; those that do not come back are."""
    probe.collect()
    scenario.write("system generation 2", "system nvmlInitWithFlags !9")
    samples = probe.collect()
    assert status(samples) == "driver_not_loaded"
    assert starting_with(samples, "gpu_") == {}
    scenario.write("system generation 2", "system gpus 1")
    samples = probe.collect(later=31)
    assert (samples[gpu("gpu_up")], samples[gpu("gpu_up", IDLE)]) == (1, 0)


def test_no_gpus(probe: GpuProbe, scenario: Scenario) -> None:
    """A driver without GPUs counts none."""
    scenario.write("system gpus 0")
    assert probe.gpus() == {
        'gpu_driver_info{cuda="13.0",driver="580.95.05",host_name="node-1",nvml="13.580.95.05"}': 1,
        'gpu_devices{source="nvml"}': 0,
    }


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


def test_two_gpus_with_one_uuid(fake_nvml: Path, scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    """Both are shown, the second one with its address, also after the first one is lost; the log says so once."""
    scenario.write("* nvmlDeviceGetUUID GPU-same")
    with nvml_probe(scenario.environment(fake_nvml)) as probe:
        samples = probe.collect()
        up = starting_with(samples, "gpu_up{")
        assert list(up.values()) == [1, 1]
        first, second = sorted(up)
        assert first == 'gpu_up{uuid="GPU-same"}'
        assert second.startswith('gpu_up{uuid="GPU-same-')
        scenario.write("* nvmlDeviceGetUUID GPU-same", "0 * !15")
        assert starting_with(probe.collect(), "gpu_up{") == {first: 0, second: 1}
    assert caplog.text.count("have the same UUID") == 1


def test_numa_node(fake_nvml: Path, scenario: Scenario) -> None:
    """The NUMA node is given where exactly one is nearest."""
    nodes = {"0x8": "3", "0x3": "", "0": "", "!3": ""}
    lines = [f"{index} nvmlDeviceGetMemoryAffinity.0 {mask}" for index, mask in enumerate(nodes)]
    uuids = [f"{index} nvmlDeviceGetUUID GPU-{index}" for index in range(len(nodes))]
    scenario.write(f"system gpus {len(nodes)}", *lines, *uuids)
    with nvml_probe(scenario.environment(fake_nvml)) as probe:
        found = [series for series in probe.gpus() if series.startswith("gpu_info")]
    assert [series.split('numa_node="')[1].split('"')[0] for series in found] == list(nodes.values())


def test_all_functions_exist() -> None:
    """Every function that is called by name is one of nvidia-ml-py."""
    assert [name for name in FUNCTIONS if not callable(getattr(pynvml, name, None))] == []


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
