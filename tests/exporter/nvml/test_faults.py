"""What can go wrong under the exporter, each as a scenario of the fake library.

In each fault the scrape is answered in time and says what is missing, the healthy GPU stays complete, nothing of the
broken one is shown but its identity, and when the fault is over everything is as before without a restart.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard_exporter.gpus import collector, worker
from laggard_exporter.gpus.child_process import Batch, Child, DiedError, Request
from laggard_exporter.nvml import answers
from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from laggard_exporter.nvml.library import NVML, start
from tests.exporter.gpus.support import GROUP_SECONDS, LATER, about, failures, status, timed, timeouts
from tests.exporter.nvml.support import BUSY, IDLE, LOST, gpu
from tests.exporter.support import TIMEOUT, GpuProbe, lasting, starting_with
from tests.fake_nvml.fake import EVERYTHING, Scenario, copies

pytestmark = pytest.mark.usefixtures("short_limits")

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


def test_the_call_that_ends_the_process_is_known(fake_nvml: Path, scenario: Scenario) -> None:
    """Who asks a process that has ended meanwhile learns which call ended it, also before older answers are read."""
    scenario.write("0 nvmlDeviceGetUtilizationRates !abort")
    child = start({**os.environ, **scenario.environment(fake_nvml)})
    try:
        begin = Batch([NVML.init, Request("nvmlDeviceGetHandleByIndex", None, (0,))])
        child.receive(child.send(begin, TIMEOUT), time.monotonic() + TIMEOUT)
        utilization = "nvmlDeviceGetUtilizationRates"
        child.send(Batch([Request("nvmlDeviceGetCount")]), TIMEOUT)
        child.send(Batch([Request("nvmlSystemGetDriverVersion"), Request(utilization, 0)]), TIMEOUT)
        child.process.wait(TIMEOUT)
        with pytest.raises(DiedError) as died:
            child.send(Batch([Request(utilization, 1)]), TIMEOUT)
    finally:
        child.close()
    assert died.value.request == Request(utilization, 0)


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


def test_a_node_without_a_free_processor(probe: GpuProbe, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that wants to run and may not is waited for: it does not hang."""
    before = probe.collect()
    monkeypatch.setattr(Child, "_wants_to_run", lambda _: True)
    scenario.write(f"0 nvmlDeviceGetUtilizationRates:delay {int(GROUP_SECONDS * 2000)}")
    assert lasting(timed(probe)) == lasting(before)
    assert len(probe.children) == 1
    monkeypatch.setattr(Child, "_wants_to_run", lambda _: False)
    assert timed(probe)[gpu("gpu_up")] == 0
