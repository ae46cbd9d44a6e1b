"""What can go wrong under the exporter, each as a scenario of the fake library.

In each fault the scrape is answered in time and says what is missing, the healthy GPU stays complete, nothing of the
broken one is shown but its identity, and when the fault is over everything is as before without a restart.
"""

from __future__ import annotations

import errno
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard_exporter.gpus import collector, devices, session, worker
from laggard_exporter.gpus.child_process import Child
from laggard_exporter.nvml import answers
from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from laggard_exporter.nvml.library import ReturnCode
from laggard_exporter.samples import PartialFailureError
from tests.exporter.support import TIMEOUT, GpuProbe, as_dict, lasting, nvml_probe, starting_with
from tests.exporter.test_nvml import BUSY, IDLE, LOST, about, failures, gpu, status
from tests.fake_nvml.fake import EVERYTHING, Scenario, build, copies

#: How long calls may take in these tests, in seconds: long enough for a machine that does much else.
GROUP_SECONDS = 0.4
#: What a scrape may take with a fault or two in it.
SCRAPE_SECONDS = 5.5
#: Longer than any GPU is left alone.
LATER = 1300

TIMEOUTS = "laggard_exporter_nvml_call_timeouts_total"


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GROUP_SECONDS", GROUP_SECONDS)
    monkeypatch.setattr(devices, "OPEN_SECONDS", 1.0)
    monkeypatch.setattr(session, "OPEN_SECONDS", 1.0)


def timed(probe: GpuProbe, later: float = 0, limit: float = SCRAPE_SECONDS) -> dict[str, float]:
    """Scrape and check that it was answered in time."""
    started = time.monotonic()
    samples = probe.collect(later=later)
    assert time.monotonic() - started < limit
    return samples


def timeouts(samples: dict[str, float]) -> dict[str, float]:
    """Return the calls that never returned, by function, without zeros."""
    return {series.split('"')[1]: value for series, value in samples.items() if series.startswith(TIMEOUTS) and value}


HANGS = {
    "nvmlDeviceGetHandleByIndex_v2": "",  # asked for at the start alone
    "nvmlDeviceGetUtilizationRates": "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetFieldValues": "nvmlDeviceGetFieldValues",
    "nvmlGpmSampleGet": "nvmlGpmMetricsGet",
    "nvmlDeviceGetMigMode": "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeRunningProcesses": "nvmlDeviceGetComputeRunningProcesses_v3",
    "*": "nvmlDeviceGetFieldValues",
}


@pytest.mark.parametrize("function", HANGS)
def test_a_function_hangs_for_one_gpu(probe: GpuProbe, scenario: Scenario, function: str) -> None:
    """A GPU whose call never returns is down within the scrape, its process is replaced, and the others stay."""
    time.sleep(0.3)  # so that the next sample of GPM is taken
    before = probe.collect()
    time.sleep(0.3)
    scenario.write(f"0 {function}:delay 60000")
    samples = timed(probe)
    if not HANGS[function]:
        assert lasting(samples) == lasting(before), "what is known is not asked again"
        return
    assert about(samples, BUSY) == LOST
    assert lasting(about(samples, IDLE)) == lasting(about(before, IDLE))
    assert timeouts(samples) == {HANGS[function]: 1}
    assert probe.incomplete == "a GPU does not answer in time"
    assert status(samples) == "available"
    assert about(timed(probe, limit=GROUP_SECONDS), BUSY) == LOST, "and is left alone then"
    assert [child.process.poll() is None for child in probe.children] == [False, True]
    # It is asked again after a while, and left alone for longer.
    for _ in range(2):
        assert sum(timeouts(timed(probe, later=11)).values()) == 2
    scenario.write()
    assert lasting(timed(probe, later=LATER)) == lasting(before)
    assert probe.incomplete == ""


def test_the_next_gpu_hangs_meanwhile(probe: GpuProbe, scenario: Scenario) -> None:
    """Each GPU is asked while the one before is looked at: the one that hangs is found, whoever waits for an answer."""
    mig, third = "GPU-11111111-1111-1111-1111-111111111111", "GPU-00000002"
    gpus = (*copies(3), *EVERYTHING)
    scenario.write(*gpus)
    before = probe.collect()
    time.sleep(0.3)
    # The MIG devices of the second are asked for when the third hangs already.
    scenario.write(*gpus, "2 nvmlDeviceGetFieldValues:delay 60000")
    samples = timed(probe)
    assert timeouts(samples) == {"nvmlDeviceGetFieldValues": 1}
    assert [samples[gpu("gpu_up", uuid)] for uuid in (BUSY, mig, third)] == [1, 1, 0]
    for uuid in (BUSY, mig):
        assert lasting(about(samples, uuid)) == lasting(about(before, uuid))
    scenario.write(*gpus)
    assert lasting(timed(probe, later=LATER)) == lasting(before)


def test_a_mig_device_hangs(probe: GpuProbe, scenario: Scenario) -> None:
    """A call for a MIG device that never returns makes its GPU down, and no other."""
    scenario.write(*EVERYTHING)
    before = probe.collect()
    scenario.write(*EVERYTHING, "1/0 nvmlDeviceGetMemoryInfo_v2:delay 60000")
    samples = timed(probe)
    assert (samples[gpu("gpu_up")], samples[gpu("gpu_up", IDLE)]) == (1, 0)
    assert starting_with(samples, "gpu_mig_") == {}
    assert lasting(about(samples, BUSY)) == lasting(about(before, BUSY))
    assert timeouts(samples) == {"nvmlDeviceGetMemoryInfo": 1}
    scenario.write(*EVERYTHING)
    assert lasting(timed(probe, later=LATER)) == lasting(before)


def test_a_gpu_hangs_from_the_start(probe: GpuProbe, scenario: Scenario) -> None:
    """A GPU that cannot even be opened keeps no other from being found, and is found when it can."""
    scenario.write("0 nvmlDeviceGetHandleByIndex_v2:delay 60000")
    samples = timed(probe)
    assert about(samples, BUSY) == {}
    assert samples[gpu("gpu_up", IDLE)] == 1
    assert samples['gpu_devices{source="nvml"}'] == 2
    assert probe.incomplete
    scenario.write()
    assert timed(probe, later=LATER)[gpu("gpu_up")] == 1


@pytest.mark.parametrize("function", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
def test_a_gpu_hangs_when_its_events_are_asked_for(probe: GpuProbe, scenario: Scenario, function: str) -> None:
    """The one GPU is down, and the events of the others are told."""
    scenario.write(f"0 {function}:delay 60000")
    samples = timed(probe)
    assert (samples[gpu("gpu_up")], samples[gpu("gpu_up", IDLE)]) == (0, 1)
    assert sum(timeouts(samples).values()) == 1
    error = gpu("gpu_xid_errors_total", IDLE, xid="79", tier="critical")
    assert samples[error] == 0
    scenario.write(f"0 {function}:delay 60000", "1 event.1 79")
    for _ in range(100):
        if timed(probe)[error]:
            break
        time.sleep(0.02)
    samples = timed(probe)
    assert (samples[error], samples[gpu("gpu_up")]) == (1, 0)
    scenario.write()
    assert timed(probe, later=LATER)[gpu("gpu_up")] == 1


def test_a_full_process_table(probe: GpuProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started NVML is in error, one line says why, and it is there again when one can."""

    def refuse() -> Child:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    start = probe.collector._session.worker._start
    monkeypatch.setattr(probe.collector._session.worker, "_start", refuse)
    samples = timed(probe)
    assert status(samples) == "error"
    assert starting_with(samples, "gpu_") == {}
    monkeypatch.setattr(probe.collector._session.worker, "_start", start)
    assert timed(probe, later=31)[gpu("gpu_up")] == 1


@pytest.mark.parametrize(
    ("line", "function"),
    [
        ("system gpus:delay 60000", "nvmlDeviceGetCount"),
        ("system nvmlSystemGetDriverVersion:delay 60000", "nvmlSystemGetDriverVersion"),
        ("system nvmlInitWithFlags:delay 60000", "nvmlInitWithFlags"),
    ],
)
def test_the_driver_hangs(probe: GpuProbe, scenario: Scenario, line: str, function: str) -> None:
    """A driver that hangs as a whole makes GPU series absent and the state say so; not every scrape waits for it."""
    before = probe.collect()
    probe.collector.close()
    scenario.write("system generation 2", line)
    samples = timed(probe)
    assert starting_with(samples, "gpu_") == {}
    assert status(samples) == "no_answer"
    assert samples["laggard_exporter_nvml_available"] == 0
    assert timeouts(samples) == {function: 1}
    assert probe.incomplete == "NVML does not answer"
    assert starting_with(timed(probe, limit=GROUP_SECONDS), "gpu_") == {}
    scenario.write("system generation 2")
    assert lasting(timed(probe, later=31)) == lasting(before)
    assert probe.incomplete == ""


def test_every_gpu_hangs(probe: GpuProbe, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """When more hangs than a scrape has time for, it ends in time; later scrapes find what does not hang."""
    monkeypatch.setattr(collector, "SCRAPE_SECONDS", 1.0)
    before = probe.collect()
    uuids = [f"{index} nvmlDeviceGetUUID GPU-{index}" for index in range(2, 6)]
    scenario.write("system gpus 6", *uuids)
    probe.collect()
    scenario.write("system gpus 6", *uuids, "* nvmlDeviceGetFieldValues:delay 60000")
    samples = timed(probe, limit=2)
    assert status(samples) == "no_answer"
    assert starting_with(samples, "gpu_") == {}
    assert probe.incomplete
    scenario.write()
    for _ in range(3):
        samples = timed(probe, later=LATER)
    assert lasting(about(samples, BUSY)) == lasting(about(before, BUSY))


def test_a_slow_driver(probe: GpuProbe, scenario: Scenario) -> None:
    """A driver that takes its time is waited for."""
    before = probe.collect()
    scenario.write("* *:delay 2")
    assert lasting(timed(probe)) == lasting(before)
    assert len(probe.children) == 1


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


def test_all_gpus_are_lost(probe: GpuProbe, scenario: Scenario) -> None:
    """When every GPU falls off the bus all are down with their identity, and the collector itself is well."""
    before = probe.collect()
    scenario.write("* * !15")
    samples = timed(probe)
    assert starting_with(samples, "gpu_up") == {gpu("gpu_up"): 0, gpu("gpu_up", IDLE): 0}
    assert starting_with(samples, "gpu_info") == starting_with(before, "gpu_info")
    assert starting_with(samples, "gpu_power") == {}
    assert probe.incomplete == ""
    scenario.write()
    assert lasting(timed(probe, later=31)) == lasting(before)


def test_the_library_ends_its_process(probe: GpuProbe, scenario: Scenario) -> None:
    """A library that calls abort() takes its own process, counted as an error, and no more than the one GPU."""
    before = probe.collect()
    scenario.write("0 nvmlDeviceGetUtilizationRates !abort")
    samples = timed(probe)
    assert about(samples, BUSY) == LOST
    assert lasting(about(samples, IDLE)) == lasting(about(before, IDLE))
    assert failures(samples) == {"nvmlDeviceGetUtilizationRates": 1}
    assert probe.incomplete
    assert [child.process.poll() for child in probe.children] == [-signal.SIGABRT, None]
    scenario.write()
    assert lasting(timed(probe, later=LATER)) == lasting(before)


def test_a_process_that_is_killed(probe: GpuProbe) -> None:
    """Somebody ends the process that NVML runs in: the same scrape has a new one."""
    before = probe.collect()
    probe.children[0].process.kill()
    probe.children[0].process.wait(TIMEOUT)
    samples = timed(probe)
    assert status(samples) == "error"
    assert lasting(timed(probe, later=31)) == lasting(before)
    assert len(probe.children) == 2


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Child]]:
    """Make children that survive being killed, as one does whose call the kernel does not return from."""
    left: list[Child] = []

    def survive(child: Child) -> bool:
        left.append(child)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Child, "close", survive)
        yield left
    for child in left:
        child.close()


def test_processes_that_can_not_be_killed(probe: GpuProbe, scenario: Scenario, unkillable: list[Child]) -> None:
    """Processes held by the kernel are left behind, but only so many; when one is gone the work goes on."""
    probe.collect()
    scenario.write("0 nvmlDeviceGetUtilizationRates:delay 60000")
    samples = timed(probe)
    assert samples["laggard_exporter_nvml_stuck_processes"] == 1
    assert samples[gpu("gpu_up", IDLE)] == 1
    samples = timed(probe, later=31)
    assert samples["laggard_exporter_nvml_stuck_processes"] == worker.MAX_STUCK == 2
    for later in (0, 31, LATER):
        samples = timed(probe, later=later, limit=GROUP_SECONDS)
        assert status(samples) == "no_answer"
        assert starting_with(samples, "gpu_") == {}
        assert probe.incomplete
    assert len(probe.children) == 2
    scenario.write()
    unkillable[0].process.kill()
    unkillable[0].process.wait(TIMEOUT)
    samples = timed(probe)
    assert samples["laggard_exporter_nvml_stuck_processes"] == 1
    assert samples[gpu("gpu_up", IDLE)] == 1


def test_a_monitor_that_says_nothing_runs(probe: GpuProbe, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an XID 31 a monitor may count nothing while kernels run: no activity is told until it does, no zero."""
    monkeypatch.setattr(answers, "_UTILIZATION_SECONDS", SHORTEST_WINDOW)
    activity = ("gpu_graphics_activity_ratio", "gpu_tensor_activity_ratio", "gpu_pcie_receive_bytes_total")
    rejected = 'laggard_exporter_nvml_values_rejected_total{metric="gpu_graphics_activity_ratio"}'
    probe.collect()

    def seen() -> tuple[list[float | None], float]:
        time.sleep(SHORTEST_WINDOW)
        samples = probe.collect()
        assert samples[gpu("gpu_utilization_ratio")] == 0.93
        assert samples[gpu("gpu_graphics_activity_ratio", IDLE)] == 0
        return [samples.get(gpu(name)) for name in activity], samples[rejected]

    (*before, received), count = seen()
    assert (before, count) == ([0.985, 0.6375], 0)
    assert received is not None
    numbers = (*range(1, 8), *range(9, 14), 20, 21)
    scenario.write("0 event.1 31", *(f"0 gpm.{number} 0" for number in numbers))
    assert seen() == ([None] * 3, 1)
    samples = probe.collect()  # so soon that the window is the same
    assert gpu("gpu_sm_activity_ratio") not in samples
    # The monitor of a GPU on which nothing runs says the same, and is right.
    scenario.write("0 event.1 31", *(f"0 gpm.{number} 0" for number in numbers), "0 nvmlDeviceGetUtilizationRates 3 1")
    time.sleep(SHORTEST_WINDOW)
    assert probe.collect()[gpu("gpu_sm_activity_ratio")] == 0
    scenario.write("0 event.1 31")
    (*after, _), _ = seen()
    assert after == before
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


def test_a_node_without_a_free_processor(probe: GpuProbe, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that wants to run and may not is waited for: it does not hang."""
    before = probe.collect()
    monkeypatch.setattr(Child, "_wants_to_run", lambda _: True)
    scenario.write(f"0 nvmlDeviceGetUtilizationRates:delay {int(GROUP_SECONDS * 2000)}")
    assert lasting(timed(probe)) == lasting(before)
    assert len(probe.children) == 1
    monkeypatch.setattr(Child, "_wants_to_run", lambda _: False)
    assert timed(probe)[gpu("gpu_up")] == 0


def test_what_root_alone_may_ask(probe: GpuProbe, scenario: Scenario) -> None:
    """An exporter without rights lacks the one metric that needs them, and that is no failure; any other lack is."""
    scenario.write(f"* nvmlDeviceGetSramEccErrorStatus !{ReturnCode.NO_PERMISSION}")
    samples = probe.collect()
    assert starting_with(samples, "gpu_ecc_sram") == {}
    assert failures(samples) == {}
    scenario.write(f"* nvmlDeviceGetRepairStatus !{ReturnCode.NO_PERMISSION}")
    assert failures(probe.collect()) == {"nvmlDeviceGetRepairStatus": 2}
