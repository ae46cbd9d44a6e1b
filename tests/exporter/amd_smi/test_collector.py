"""The collector of AMD's GPUs over a compiled fake of AMD SMI, whose structures have the layout of the real header."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from laggard_exporter.amd_smi import table
from laggard_exporter.amd_smi.child import layouts
from laggard_exporter.gpus.workload import Workloads, live_ranks
from laggard_exporter.ranks.files import RankFiles
from laggard_exporter.runner import UnsupportedError
from tests.exporter.amd_smi.support import BUSY, HEALTHY, IDLE, METRICS, residency
from tests.exporter.gpus.support import about, failures, gpu, status
from tests.exporter.support import GpuProbe, amd_probe, fresh, live_rank, series_name, starting_with
from tests.fake_amd_smi import fake as amd


@pytest.mark.parametrize("abi", [24, 25, 26])
def test_a_healthy_gpu(tmp_path: Path, amd_scenario: amd.Scenario, abi: int) -> None:
    """Every value of a GPU arrives in base units, exactly, in each layout of the library's structures."""
    library = amd.build(tmp_path, abi)
    amd_scenario.write("0 amdsmi_get_gpu_process_list 4294967294:4096")
    with amd_probe(amd_scenario.environment(library), sysfs=amd.sysfs(tmp_path / "sys")) as probe:
        samples = probe.collect()
    assert about(samples, BUSY) == HEALTHY
    assert status(samples) == "available"
    assert (failures(samples), probe.incomplete) == ({}, "")
    assert starting_with(samples, "gpu_devices") == {
        'gpu_devices{source="amd_smi"}': 2,
        'gpu_devices{source="pci_amd"}': 2,
    }
    driver = series_name(
        "gpu_driver_info", {"driver": "6.12.12", "nvml": "", "cuda": "", "host_name": "node-1"}.items()
    )
    assert samples[driver] == 1


def test_sizes_of_structures() -> None:
    """What arrays are made of has the size that the real header gives, in each version."""
    sizes = {version: ctypes.sizeof(layouts.PROC_INFO[version]) for version in layouts.VERSIONS}
    assert sizes == {27: 704, 26: 704, 25: 704, 24: 224}
    assert ctypes.sizeof(layouts.RETIRED_PAGE) == 24
    assert max(map(ctypes.sizeof, layouts.PROC_INFO.values())) < layouts.SIZE


def test_what_a_gpu_does_not_say(amd_gpus: GpuProbe, amd_scenario: amd.Scenario) -> None:
    """Words of ones, and the zeros that the library leaves, are no values: never 65535 W, never a limit of 0 W."""
    amd_scenario.write(
        f"0 {METRICS}.current_socket_power 0xffff",
        f"0 {METRICS}.average_socket_power 0xffff",
        f"0 {METRICS}.average_gfx_activity 0xffff",
        f"0 {METRICS}.energy_accumulator 0xffffffffffffffff",
        f"0 {METRICS}.ppt_residency_acc 0xffffffffffffffff",
        "0 amdsmi_get_power_cap_info.power_cap 0",
        "0 amdsmi_get_pcie_info.pcie_speed 0",
        "0 amdsmi_get_pcie_info.pcie_width 0",
        "0 amdsmi_get_pcie_info.pcie_replay_count 0xffffffffffffffff",
    )
    samples = amd_gpus.collect()
    gone = {
        gpu("gpu_power_watts", BUSY),
        gpu("gpu_power_limit_watts", BUSY),
        gpu("gpu_utilization_ratio", BUSY),
        gpu("gpu_energy_joules_total", BUSY),
        gpu("gpu_clock_event_seconds_total", BUSY, reason="sw_power_cap"),
        gpu("gpu_pcie_link_generation", BUSY),
        gpu("gpu_pcie_link_width", BUSY),
        gpu("gpu_pcie_replays_total", BUSY),
    }
    assert about(samples, BUSY) == {series: value for series, value in HEALTHY.items() if series not in gone}
    assert failures(samples) == {}


def test_what_cannot_be_true(amd_gpus: GpuProbe, amd_scenario: amd.Scenario) -> None:
    """A value outside of its bounds is absent and counted."""
    amd_scenario.write(f"0 {METRICS}.average_gfx_activity 30000", f"0 {METRICS}.temperature_hotspot 3000")
    samples = amd_gpus.collect()
    assert HEALTHY.keys() - about(samples, BUSY).keys() == {
        gpu("gpu_utilization_ratio", BUSY),
        gpu("gpu_temperature_celsius", BUSY, sensor="gpu"),
    }
    assert failures(samples) == {"gpu_utilization_ratio": 1, "gpu_temperature_celsius": 1}


def test_older_gpus(amd_gpus: GpuProbe, amd_scenario: amd.Scenario) -> None:
    """A GPU without the newer metrics is read by the older ones: power, clock, temperature, reasons as bits."""
    absent = [
        f"0 {METRICS}.{name} 0xffff" for name in ("current_socket_power", "temperature_hotspot", "current_gfxclk")
    ]
    absent += [f"0 {METRICS}.current_gfxclks.{die} 0xffff" for die in range(2)]
    absent += [f"0 {METRICS}.accumulation_counter 0xffffffffffffffff"]
    bits = (1 << 3) | (1 << 40)  # a limit of package power, the temperature of a memory's regulator
    amd_scenario.write(
        *absent,
        f"0 {METRICS}.average_socket_power 250",
        f"0 {METRICS}.temperature_edge 71",
        f"0 {METRICS}.average_gfxclk_frequency 1502",
        f"0 {METRICS}.indep_throttle_status {bits}",
    )
    samples = about(amd_gpus.collect(), BUSY)
    assert samples[gpu("gpu_power_watts", BUSY)] == 250
    assert samples[gpu("gpu_temperature_celsius", BUSY, sensor="gpu")] == 71
    assert samples[gpu("gpu_clock_hertz", BUSY, clock="sm")] == 1.502e9
    assert starting_with(samples, "gpu_clock_event") == {
        gpu("gpu_clock_event_active", BUSY, reason="sw_power_cap"): 1,
        gpu("gpu_clock_event_active", BUSY, reason="board_limit"): 0,
        gpu("gpu_clock_event_active", BUSY, reason="hw_thermal"): 1,
    }


def test_seconds_of_clock_events(amd_gpus: GpuProbe, amd_scenario: amd.Scenario) -> None:
    """Accumulators become seconds: their share of the firmware's looks over the driver's clock, through a reset too."""

    def seconds() -> tuple[float, float]:
        samples = amd_gpus.collect()
        cap, heat = (
            samples[gpu("gpu_clock_event_seconds_total", BUSY, reason=reason)]
            for reason in ("sw_power_cap", "hw_thermal")
        )
        return cap, heat

    amd_scenario.write(*residency(1000, 10, ppt=500, hbm_thm=7))
    assert seconds() == (0, 0), "what was before is not known"
    # In 8 s the firmware looked 4000 times, found the power limit 3000 times and heat 1000 and 500 times.
    amd_scenario.write(*residency(5000, 18, ppt=3500, hbm_thm=1007, vr_thm=500))
    assert seconds() == (6, 2)
    assert seconds() == (6, 2), "no time has passed"
    amd_scenario.write(*residency(100, 20, ppt=100, hbm_thm=0))
    assert seconds() == (6, 2), "after a reset the growth is not known"
    amd_scenario.write(*residency(300, 24, ppt=200, hbm_thm=0))
    assert seconds() == (8, 2)


def test_errors_of_memory(amd_gpus: GpuProbe, amd_scenario: amd.Scenario) -> None:
    """Where no block corrects errors there are none to count; pages tell of retirement, and of one that failed."""
    counter = gpu("gpu_ecc_volatile_errors_total", BUSY, severity="uncorrected")
    pages = "gpu_retired_pages_total"
    amd_scenario.write("0 amdsmi_get_gpu_total_ecc_count.uncorrectable_count 5", "0 amdsmi_get_gpu_bad_page_info 0 0 1")
    samples = amd_gpus.collect()
    assert amd_gpus.collect()[counter] == samples[counter] == 5, "the library adds to what it finds"
    assert samples[gpu(pages, BUSY, cause="uncorrected")] == 2
    assert [samples[gpu(name, BUSY)] for name in ("gpu_retired_pages_pending", "gpu_row_remap_failed")] == [1, 0]
    amd_scenario.write("0 amdsmi_get_gpu_ecc_enabled 0", "0 amdsmi_get_gpu_bad_page_info 0 2")
    samples = amd_gpus.collect()
    assert starting_with(about(samples, BUSY), "gpu_ecc") == {gpu("gpu_ecc_mode_enabled", BUSY): 0}
    assert samples[gpu("gpu_row_remap_failed", BUSY)] == 1
    assert failures(samples) == {}


@pytest.mark.parametrize(("threshold", "failed"), [(0, 0), (3, 1), (4, 0), (0xFFFFFFFF, 0)])
def test_too_many_retired_pages(amd_gpus: GpuProbe, amd_scenario: amd.Scenario, threshold: int, failed: int) -> None:
    """A GPU whose retired pages reach its threshold has no spare ones left."""
    amd_scenario.write("0 amdsmi_get_gpu_bad_page_info 0 0 0", f"0 amdsmi_get_gpu_bad_page_threshold {threshold}")
    assert amd_gpus.collect()[gpu("gpu_row_remap_failed", BUSY)] == failed


@pytest.mark.parametrize("function", sorted({call.function for call in table.CALLS} - {METRICS}))
def test_a_missing_symbol(tmp_path: Path, amd_scenario: amd.Scenario, function: str) -> None:
    """A library without a function costs what it tells and nothing else, and is no failure."""
    library = amd.build(tmp_path, without=[function])
    with amd_probe(amd_scenario.environment(library), sysfs=amd.sysfs(tmp_path / "sys")) as probe:
        samples = probe.collect()
    told = {
        (reading.family.name, reading.labels)
        for reading in table.READINGS
        if all(source.function == function for source in reading.sources)
    }
    if function == "amdsmi_get_gpu_ecc_enabled":  # what counts is known by it
        told |= {("gpu_ecc_volatile_errors_total", (severity,)) for severity in ("corrected", "uncorrected")}
    gone = HEALTHY.keys() - about(samples, BUSY).keys()
    assert {series.partition("{")[0] for series in gone} <= {name for name, _ in told}
    assert gone
    assert {series: samples[series] for series in HEALTHY.keys() - gone} == {
        series: value for series, value in HEALTHY.items() if series not in gone
    }
    assert (failures(samples), status(samples), probe.incomplete) == ({}, "available", "")


def test_processes(fake_amd_smi: Path, amd_scenario: amd.Scenario, tmp_path: Path) -> None:
    """What runs on a GPU is known by its processes: their memory, and the rank that one of them is."""
    with live_rank(tmp_path / "ranks", fresh(run="r", rank=3)) as rank:
        workloads = Workloads(lambda: live_ranks(RankFiles(tmp_path / "ranks")))
        amd_scenario.write(f"0 amdsmi_get_gpu_process_list {rank.pid}:1073741824 {os.getpid()}:4096")
        variables = amd_scenario.environment(fake_amd_smi)
        with amd_probe(variables, sysfs=amd.sysfs(tmp_path / "sys"), workloads=workloads) as probe:
            samples = probe.collect()
    used = {
        (series.partition('training_rank="')[2].partition('"')[0]): value
        for series, value in samples.items()
        if series.startswith("gpu_workload_memory_used_bytes")
    }
    assert used == {"3": 1 << 30, "": 4096}
    assert sum(starting_with(samples, "gpu_workload_processes").values()) == 2


def test_gpus_without_an_identity(amd_gpus: GpuProbe, amd_scenario: amd.Scenario) -> None:
    """A GPU without unique id, as one of a desktop, is called by its host and its place on the bus there."""
    amd_scenario.write("0 amdsmi_get_gpu_asic_info.asic_serial 0x0000000000000000")
    samples = amd_gpus.collect()
    assert starting_with(samples, "gpu_up") == {gpu("gpu_up", "PCI-node-1-0000:05:00.0"): 1, gpu("gpu_up", IDLE): 1}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["system amdsmi_init !34"], "driver_not_loaded"),
        (["system amdsmi_init !10"], "no_permission"),
        (["system amdsmi_init !7"], "error"),
        (["system amdsmi_get_lib_version 99 1"], "version_unknown"),
    ],
)
def test_a_library_that_cannot_be_opened(
    amd_gpus: GpuProbe, amd_scenario: amd.Scenario, lines: list[str], expected: str
) -> None:
    """The state says why nothing is read, no series of a GPU is there, and later it is tried again."""
    amd_scenario.write(*lines)
    samples = amd_gpus.collect()
    assert status(samples) == expected
    assert starting_with(samples, "gpu_") == {'gpu_devices{source="pci_amd"}': 2}
    amd_scenario.write()
    assert about(amd_gpus.collect(later=31), BUSY) == HEALTHY


def test_rocm_6_1(tmp_path: Path, amd_scenario: amd.Scenario) -> None:
    """The release before has other structures under the same file name, and none of them is read."""
    library = amd.build(tmp_path, 24)
    amd_scenario.write("system amdsmi_get_lib_version 24 5")
    with amd_probe(amd_scenario.environment(library), sysfs=amd.sysfs(tmp_path / "sys")) as probe:
        assert status(probe.collect()) == "version_unknown"


def test_a_node_without_the_library(tmp_path: Path) -> None:
    """Accelerators without ROCm are said, and counted by the bus alone."""
    with amd_probe({}, sysfs=amd.sysfs(tmp_path, 8)) as probe:
        samples = probe.collect()
    assert status(samples) == "library_not_found"
    assert starting_with(samples, "gpu_") == {'gpu_devices{source="pci_amd"}': 8}


def test_a_node_without_such_gpus(tmp_path: Path) -> None:
    """A node without GPUs of AMD starts no process and has no series."""
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    with amd_probe({}, sysfs=tmp_path) as probe:
        with pytest.raises(UnsupportedError, match="the PCI bus shows no GPU of AMD"):
            probe.collect()
        assert probe.children == []
