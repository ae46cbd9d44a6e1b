"""XID errors from NVML's events and from the kernel log, counted once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from laggard_exporter.kernel_log import KernelLog
from laggard_exporter.nvml import xid
from laggard_exporter.nvml.xid import APPLICATION, CRITICAL, WARNING, XidErrors
from tests.exporter.nvml.support import IDLE, gpu
from tests.exporter.support import GpuProbe, as_dict, nvml_probe, starting_with
from tests.fake_nvml.fake import Scenario

BUSY_PCI, IDLE_PCI = "0000:1b:00", "0000:9d:00"


def errors(samples: dict[str, float]) -> dict[str, float]:
    """Return the errors that were counted, by code and GPU, without zeros."""
    counted = starting_with(samples, "gpu_xid_errors_total")
    return {
        series.split('xid="')[1][:-2] + series.split('uuid="')[1][:5]: value
        for series, value in counted.items()
        if value
    }


def record(code: int, pci: str = BUSY_PCI, seconds: float = 100) -> str:
    """Return what the kernel writes for an error."""
    text = f"NVRM: Xid (PCI:{pci}): {code}, pid=77, name=python, some text"
    return f"4,{code},{int(seconds * 1e6)},-;{text}\n SUBSYSTEM=pci\n"


def write(path: Path, *records: str) -> None:
    """Append to the log."""
    with path.open("a") as file:
        file.write("".join(records))


def wait_for(probe: GpuProbe, expected: dict[str, float]) -> dict[str, float]:
    """Scrape until the events have come through the library, and return the samples."""
    samples: dict[str, float] = {}
    for _ in range(100):
        samples = probe.collect()
        if errors(samples) == expected:
            return samples
        time.sleep(0.02)
    raise AssertionError(errors(samples))


def test_events(probe: GpuProbe, scenario: Scenario) -> None:
    """Events are counted by GPU and code, those before the start are not, and an error of the wait ends nothing."""
    scenario.write("0 event.1 31")
    assert errors(probe.collect()) == {}
    scenario.write("0 event.1 31", "0 event.2 79", "1 event.3 13", "0 event.4 79")
    before = time.time()
    samples = wait_for(probe, {"79GPU-0": 2, "13GPU-1": 1})
    assert before - 1 < samples[gpu("gpu_xid_last_timestamp_seconds", xid="79", tier="critical")] <= time.time()
    assert starting_with(samples, "gpu_xid_last_timestamp_seconds{") == {
        gpu("gpu_xid_last_timestamp_seconds", xid="79", tier="critical"): pytest.approx(before, abs=5),
        gpu("gpu_xid_last_timestamp_seconds", IDLE, xid="13", tier="application"): pytest.approx(before, abs=5),
    }
    told = ("0 event.1 31", "0 event.2 79", "1 event.3 13", "0 event.4 79")
    scenario.write(*told, "system nvmlEventSetWait_v2 !15")
    time.sleep(0.1)
    scenario.write(*told, "0 event.5 62")
    wait_for(probe, {"79GPU-0": 2, "13GPU-1": 1, "62GPU-0": 1})


def test_events_of_a_process_that_hangs(probe: GpuProbe, scenario: Scenario) -> None:
    """An event that came before the process was given up counts; the new process goes on with the events."""
    probe.collect()
    scenario.write("1 event.1 62")
    time.sleep(0.2)
    scenario.write("1 event.1 62", "0 nvmlDeviceGetUtilizationRates:delay 60000")
    assert errors(probe.collect()) == {"62GPU-1": 1}
    scenario.write("1 event.1 62", "1 event.2 62")
    wait_for(probe, {"62GPU-1": 2})


def test_the_kernel_log(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """Errors in the log count from the start on; earlier ones tell their time alone; other messages are nothing."""
    log = tmp_path / "log"
    write(log, record(48, seconds=50), "6,1,1,-;usb 1-1: new device\n", "nonsense\n", record(79, pci="0000:ff:00"))
    with nvml_probe(scenario.environment(fake_nvml), kernel_log=KernelLog(log)) as probe:
        samples = probe.collect()
        assert errors(samples) == {}
        assert samples["laggard_exporter_kernel_log_readable"] == 1
        boot = time.time() - time.monotonic()
        assert samples[gpu("gpu_xid_last_timestamp_seconds", xid="48", tier="critical")] == pytest.approx(
            boot + 50, abs=1
        )
        old_style = "4,9,200000000,-;NVRM: Xid (0000:9d:00): 119, Timeout waiting for RPC\n"
        write(log, record(48), old_style, record(154), record(31, pci=IDLE_PCI)[:40])
        assert errors(probe.collect()) == {"48GPU-0": 1, "119GPU-1": 1, "154GPU-0": 1}
        write(log, record(31, pci=IDLE_PCI)[40:])
        assert errors(probe.collect()) == {"48GPU-0": 1, "119GPU-1": 1, "154GPU-0": 1, "31GPU-1": 1}


def test_both_tell_the_same(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """An error that both places tell is one error; what one of them missed counts by the other."""
    log = tmp_path / "log"
    log.touch()
    with nvml_probe(scenario.environment(fake_nvml), kernel_log=KernelLog(log)) as probe:
        probe.collect()
        scenario.write("0 event.1 79", "0 event.2 94")
        write(log, record(79), record(79), record(48))
        wait_for(probe, {"79GPU-0": 2, "94GPU-0": 1, "48GPU-0": 1})
        for _ in range(3):
            assert errors(probe.collect()) == {"79GPU-0": 2, "94GPU-0": 1, "48GPU-0": 1}


def test_a_gpu_that_fell_off_the_bus(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """The errors of a lost GPU are told: they say why it is lost."""
    log = tmp_path / "log"
    log.touch()
    with nvml_probe(scenario.environment(fake_nvml), kernel_log=KernelLog(log)) as probe:
        probe.collect()
        scenario.write("0 * !15")
        write(log, record(79))
        samples = probe.collect()
        assert samples[gpu("gpu_up")] == 0
        assert errors(samples) == {"79GPU-0": 1}


def test_a_log_that_may_not_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without the log there are the events alone, and one line says so."""
    caplog.set_level("INFO")
    found = XidErrors(KernelLog(tmp_path / "missing"))
    for _ in range(2):
        found.read_log()
    assert not found.is_log_readable
    assert [entry.getMessage() for entry in caplog.records] == [
        f"{tmp_path / 'missing'}: No such file or directory; XID errors come from NVML's events alone"
    ]
    found.report("00000000:1B:00.0", 999, 5.0)
    samples = as_dict(found.samples("GPU-0", "00000000:1B:00.0"))
    assert samples['gpu_xid_errors_total{tier="other",uuid="GPU-0",xid="999"}'] == 1
    assert starting_with(as_dict(found.samples("GPU-1", "")), "gpu_xid_last") == {}


def test_no_code_is_in_two_tiers() -> None:
    """An error is critical, a warning, or the application's own."""
    assert len(CRITICAL | WARNING | APPLICATION) == len(CRITICAL) + len(WARNING) + len(APPLICATION)
    assert [xid.tier(code) for code in (79, 94, 31, 1)] == ["critical", "warning", "application", "other"]


def test_an_event_of_a_gpu_that_is_lost_afterwards(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """The error that took a GPU away counts once, though the GPU has no index any more and no log is readable."""
    with nvml_probe(scenario.environment(fake_nvml), kernel_log=KernelLog(tmp_path / "missing")) as probe:
        probe.collect()
        scenario.write("0 event.1 79")
        time.sleep(0.5)
        scenario.write("0 event.1 79", "0 * !15")
        samples = [probe.collect() for _ in range(3)][-1]
        assert samples[gpu("gpu_up")] == 0
        assert errors(samples) == {"79GPU-0": 1}
