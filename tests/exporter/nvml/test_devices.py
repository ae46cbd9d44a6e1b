"""GPUs that are lost, leave, come back, or share an identity."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from laggard_exporter.nvml.library import ReturnCode
from tests.exporter.gpus.support import about
from tests.exporter.nvml.support import BUSY, IDLE, LOST, gpu
from tests.exporter.support import GpuProbe, nvml_probe, starting_with
from tests.fake_nvml.fake import Scenario


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


def test_no_gpus(probe: GpuProbe, scenario: Scenario) -> None:
    """A driver without GPUs counts none."""
    scenario.write("system gpus 0")
    assert probe.gpus() == {
        'gpu_driver_info{cuda="13.0",driver="580.95.05",host_name="node-1",nvml="13.580.95.05"}': 1,
        'gpu_devices{source="nvml"}': 0,
    }


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
