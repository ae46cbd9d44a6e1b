"""Drivers that come, go, are replaced and are let go, and GPUs that change places."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from laggard_exporter.gpus import collector, session
from laggard_exporter.nvml.library import ReturnCode
from laggard_exporter.samples import PartialFailureError
from tests.exporter.gpus.support import about, failures, status, timed
from tests.exporter.nvml.support import BUSY, IDLE, gpu
from tests.exporter.support import GpuProbe, as_dict, lasting, nvml_probe, starting_with
from tests.fake_nvml.fake import Scenario, build

pytestmark = pytest.mark.usefixtures("short_limits")


def test_a_driver_that_is_slow_to_start(probe: GpuProbe, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start longer than a scrape is waited for by the next scrape, not begun again."""
    monkeypatch.setattr(collector, "SCRAPE_SECONDS", 0.5)
    monkeypatch.setattr(session, "OPEN_SECONDS", 10.0)
    scenario.write("system nvmlInitWithFlags:delay 1200")
    samples = timed(probe, limit=1)
    assert status(samples) == "no_answer"
    assert probe.incomplete
    for _ in range(20):
        samples = timed(probe)
        if samples.get(gpu("gpu_up")) == 1:
            break
        scenario.write()
    assert samples[gpu("gpu_up")] == 1
    assert len(probe.children) == 1


def test_a_driver_that_is_replaced(tmp_path: Path, scenario: Scenario) -> None:
    """After an upgrade of the driver the new library is loaded, by a new process, without a restart."""
    folder = tmp_path / "library"
    folder.mkdir()
    build(folder, without=["nvmlDeviceGetTemperatureV"])
    with nvml_probe(scenario.environment(folder / "libnvidia-ml.so.1")) as probe:
        temperature = gpu("gpu_temperature_celsius", sensor="gpu")
        assert temperature not in probe.collect()
        new = tmp_path / "new"
        new.mkdir()
        build(new)
        (folder / "libnvidia-ml.so.1").unlink()
        # Between unloading and loading the versions differ; then the driver is there again.
        scenario.write("system generation 2", f"system nvmlInitWithFlags !{ReturnCode.LIB_RM_VERSION_MISMATCH}")
        shutil.copy(new / "libnvidia-ml.so.1", folder)
        assert status(timed(probe)) == "version_mismatch"
        scenario.write("system generation 2")
        assert timed(probe, later=31)[temperature] == 64
        assert [child.process.poll() is None for child in probe.children] == [False, False, True]


def test_a_driver_that_is_let_go(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """A released driver has no process of ours on it and is not opened again until it is wanted; counts are kept."""
    folder = tmp_path / "library"
    folder.mkdir()
    shutil.copy(fake_nvml, folder)
    with nvml_probe(scenario.environment(folder / "libnvidia-ml.so.1")) as probe:
        xids = gpu("gpu_xid_errors_total", xid="79", tier="critical")
        assert probe.collect()[xids] == 0
        scenario.write("0 event.1 79")
        time.sleep(0.2)  # so that the event has come
        probe.collector.released = True
        for later in (0, 31, 1000):
            samples = probe.collect(later=later)
            assert status(samples) == "released"
            assert starting_with(samples, "gpu_") == {}
        assert [child.process.poll() is None for child in probe.children] == [False]
        scenario.write("system nvmlSystemGetDriverVersion 590.10")
        probe.collector.released = False
        samples = probe.collect()
        assert status(samples) == "available"
        assert 'driver="590.10"' in "".join(starting_with(samples, "gpu_driver_info"))
        assert samples[gpu("gpu_up")] == 1
        assert samples[xids] == 1


def test_a_gpu_that_hung_is_let_go(probe: GpuProbe, scenario: Scenario) -> None:
    """To let a driver go is no failure, though one of its GPUs hung."""
    probe.collect()
    scenario.write("0 nvmlDeviceGetUtilizationRates:delay 60000")
    with pytest.raises(PartialFailureError):
        list(probe.collector.collect())
    probe.collector.released = True
    assert status(as_dict(probe.collector.collect())) == "released"


def test_a_driver_that_comes_later(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """An exporter that started before the driver was installed finds it, without a restart."""
    folder = tmp_path / "library"
    folder.mkdir()
    with nvml_probe(scenario.environment(folder / "libnvidia-ml.so.1")) as probe:
        assert status(probe.collect()) == "library_not_found"
        assert status(probe.collect()) == "library_not_found"
        assert len(probe.children) == 1
        shutil.copy(fake_nvml, folder)
        samples = timed(probe, later=31)
        assert status(samples) == "available"
        assert samples[gpu("gpu_up")] == 1


def test_gpus_that_come_go_and_change_places(probe: GpuProbe, scenario: Scenario) -> None:
    """Series follow the GPU, not its place: more GPUs, fewer, and two that changed places with the driver's reload."""
    before = probe.collect()
    scenario.write("system gpus 3", "2 nvmlDeviceGetUUID GPU-2")
    assert timed(probe)[gpu("gpu_up", "GPU-2")] == 1
    scenario.write("system gpus 2")
    assert timed(probe)[gpu("gpu_up", "GPU-2")] == 0
    swapped = [
        f"{1 - int(line[0])}{line[1:]}" for line in scenario.path.read_text().splitlines() if line[:2] in {"0 ", "1 "}
    ]
    scenario.write("system gpus 2", "system generation 2", *swapped)
    samples = timed(probe)
    for uuid, old, new in ((BUSY, "0", "1"), (IDLE, "1", "0")):
        expected = {
            series.replace(f'index="{old}"', f'index="{new}"'): value for series, value in about(before, uuid).items()
        }
        assert lasting(about(samples, uuid)) == lasting(expected)


def test_a_gpu_that_the_driver_does_not_see(fake_nvml: Path, scenario: Scenario, tmp_path: Path) -> None:
    """The count on the bus stays when NVML counts fewer GPUs, and when it counts none."""
    for name in ("0000:1b:00.0", "0000:9d:00.0"):
        device = tmp_path / "bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    with nvml_probe(scenario.environment(fake_nvml), sysfs=tmp_path) as probe:
        scenario.write("system gpus 1")
        samples = timed(probe)
        assert (samples['gpu_devices{source="nvml"}'], samples['gpu_devices{source="pci"}']) == (1, 2)
        scenario.write("system generation 2", "system nvmlInitWithFlags !9")
        assert starting_with(timed(probe), "gpu_") == {'gpu_devices{source="pci"}': 2}


def test_what_root_alone_may_ask(probe: GpuProbe, scenario: Scenario) -> None:
    """An exporter without rights lacks the one metric that needs them, and that is no failure; any other lack is."""
    scenario.write(f"* nvmlDeviceGetSramEccErrorStatus !{ReturnCode.NO_PERMISSION}")
    samples = probe.collect()
    assert starting_with(samples, "gpu_ecc_sram") == {}
    assert failures(samples) == {}
    scenario.write(f"* nvmlDeviceGetRepairStatus !{ReturnCode.NO_PERMISSION}")
    assert failures(probe.collect()) == {"nvmlDeviceGetRepairStatus": 2}
