"""Counters over wraps, resets and nonsense."""

from __future__ import annotations

import time
from typing import Any

import pytest

from laggard_exporter.gpus.counters import Counters
from laggard_exporter.gpus.session import Question
from laggard_exporter.nvml import table
from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from laggard_exporter.nvml.library import Nvml
from tests.exporter.gpus.support import failures
from tests.exporter.nvml.support import gpu
from tests.exporter.support import GpuProbe
from tests.fake_nvml.fake import Scenario


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
