"""Drivers that lack functions, cannot be opened, or are loaded again."""

from __future__ import annotations

from pathlib import Path

import pynvml

from laggard_exporter.nvml.collector import FUNCTIONS
from laggard_exporter.nvml.library import FIELD_VALUES, ReturnCode
from tests.exporter.gpus.support import about, failures, status
from tests.exporter.nvml.support import BUSY, IDLE, gpu
from tests.exporter.support import GpuProbe, nvml_probe, starting_with
from tests.fake_nvml.fake import Scenario, build


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


def test_all_functions_exist() -> None:
    """Every function that is called by name is one of nvidia-ml-py."""
    assert [name for name in FUNCTIONS if not callable(getattr(pynvml, name, None))] == []
