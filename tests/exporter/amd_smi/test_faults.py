"""What can go wrong under AMD's GPUs, each as a scenario of the fake library, with the promises of NVIDIA's.

The scrape is answered in time and says what is missing, the healthy GPU stays complete, nothing of the broken one is
shown but its identity, and when the fault is over everything is as before without a restart.
"""

from __future__ import annotations

import pytest

from laggard_exporter.amd_smi import table
from tests.exporter.amd_smi.support import BUSY, HEALTHY, IDLE, LOST, METRICS
from tests.exporter.gpus.support import (
    GROUP_SECONDS,
    LATER,
    about,
    failures,
    gpu,
    status,
    timed,
    timeouts,
)
from tests.exporter.support import GpuProbe, starting_with
from tests.fake_amd_smi.fake import Scenario, copies

pytestmark = pytest.mark.usefixtures("short_limits")


@pytest.mark.parametrize("function", [METRICS, "amdsmi_get_gpu_vram_usage", table.PROCESSES, "*"])
def test_a_function_hangs_for_one_gpu(amd_gpus: GpuProbe, amd_scenario: Scenario, function: str) -> None:
    """A GPU whose call never returns is down within the scrape, its process is replaced, and the others stay."""
    before = amd_gpus.collect()
    amd_scenario.write(f"0 {function}:delay 60000")
    samples = timed(amd_gpus)
    assert about(samples, BUSY) == LOST
    assert about(samples, IDLE) == about(before, IDLE)
    assert list(timeouts(samples).values()) == [1]
    assert amd_gpus.incomplete == "a GPU does not answer in time"
    assert status(samples) == "available"
    assert about(timed(amd_gpus, limit=GROUP_SECONDS), BUSY) == LOST, "and is left alone then"
    assert [child.process.poll() is None for child in amd_gpus.children] == [False, True]
    amd_scenario.write()
    assert about(timed(amd_gpus, later=LATER), BUSY) == HEALTHY
    assert amd_gpus.incomplete == ""


def test_a_gpu_hangs_from_the_start(amd_gpus: GpuProbe, amd_scenario: Scenario) -> None:
    """A GPU that cannot be identified keeps no other from being found, and is found when it can."""
    amd_scenario.write("0 amdsmi_get_gpu_asic_info:delay 60000")
    samples = timed(amd_gpus)
    assert about(samples, BUSY) == {}
    assert samples[gpu("gpu_up", IDLE)] == 1
    assert samples['gpu_devices{source="amd_smi"}'] == 2
    assert 'driver="6.12.12"' in next(iter(starting_with(samples, "gpu_driver_info")))
    amd_scenario.write()
    assert about(timed(amd_gpus, later=LATER), BUSY) == HEALTHY


def test_a_function_ends_the_process(amd_gpus: GpuProbe, amd_scenario: Scenario) -> None:
    """A GPU on which the library crashes is down, and the others are read by a new process."""
    before = amd_gpus.collect()
    amd_scenario.write("0 amdsmi_get_pcie_info !abort")
    samples = timed(amd_gpus)
    assert about(samples, BUSY) == LOST
    assert about(samples, IDLE) == about(before, IDLE)
    assert failures(samples) == {"amdsmi_get_pcie_info": 1}
    amd_scenario.write()
    assert about(timed(amd_gpus, later=LATER), BUSY) == HEALTHY


# Codes of what the library finds where files are missing (2), or are there and cannot be read.
@pytest.mark.parametrize("code", [2, 6, 14, 42, 4294967295])
def test_a_gpu_is_lost(amd_gpus: GpuProbe, amd_scenario: Scenario, code: int) -> None:
    """No code means that a GPU is gone: one that answered for its metrics and does not is lost."""
    before = amd_gpus.collect()
    for lines in ([f"0 {METRICS} !{code}"], [f"0 * !{code}"]):
        amd_scenario.write(*lines)
        samples = timed(amd_gpus)
        assert about(samples, BUSY) == LOST
        assert about(samples, IDLE) == about(before, IDLE)
        assert about(timed(amd_gpus, later=31), BUSY) == LOST, "looked for again, it does not come back by halves"
        assert samples['gpu_devices{source="pci_amd"}'] == 2
    amd_scenario.write()
    assert about(timed(amd_gpus, later=31), BUSY) == HEALTHY


def test_every_gpu_is_lost_and_the_driver_comes_back(amd_gpus: GpuProbe, amd_scenario: Scenario) -> None:
    """While no GPU answers the library is opened again now and then: it looks for GPUs at its start alone."""
    amd_gpus.collect()
    amd_scenario.write("* * !2", "system gpus 0")
    samples = timed(amd_gpus)
    assert [samples[gpu("gpu_up", uuid)] for uuid in (BUSY, IDLE)] == [0, 0]
    for _ in range(3):
        samples = timed(amd_gpus, later=31)
        assert about(samples, BUSY) == LOST
    amd_scenario.write()
    samples = timed(amd_gpus, later=31)
    assert about(samples, BUSY) == HEALTHY
    assert samples['gpu_devices{source="amd_smi"}'] == 2


def test_the_driver_is_loaded_again(amd_gpus: GpuProbe, amd_scenario: Scenario) -> None:
    """A session that the driver ended is replaced within the scrape, and nothing is stale."""
    before = amd_gpus.collect()
    amd_scenario.write(
        "system generation 2", f"0 {METRICS}.current_socket_power 500", "* amdsmi_get_gpu_driver_info 6.14.1"
    )
    samples = timed(amd_gpus)
    assert len(amd_gpus.children) == 2
    assert about(samples, IDLE) == about(before, IDLE)
    assert about(samples, BUSY) == {**HEALTHY, gpu("gpu_power_watts", BUSY): 500}
    assert 'driver="6.14.1"' in next(iter(starting_with(samples, "gpu_driver_info")))


def test_the_library_hangs(amd_gpus: GpuProbe, amd_scenario: Scenario) -> None:
    """A library that hangs when it is opened makes GPU series absent; not every scrape waits for it."""
    amd_scenario.write("system amdsmi_init:delay 60000")
    samples = timed(amd_gpus)
    assert status(samples) == "no_answer"
    assert timeouts(samples) == {"amdsmi_init": 1}
    assert amd_gpus.incomplete == "AMD SMI does not answer"
    assert status(timed(amd_gpus, limit=GROUP_SECONDS)) == "no_answer"
    amd_scenario.write()
    assert about(timed(amd_gpus, later=31), BUSY) == HEALTHY


def test_the_driver_is_released(amd_gpus: GpuProbe) -> None:
    """A released driver is used by no process, and taken up again as it was."""
    amd_gpus.collect()
    amd_gpus.collector.released = True
    samples = timed(amd_gpus)
    assert status(samples) == "released"
    assert starting_with(samples, "gpu_") == {'gpu_devices{source="pci_amd"}': 2}
    assert amd_gpus.children[0].process.poll() is not None
    amd_gpus.collector.released = False
    assert about(timed(amd_gpus), BUSY) == HEALTHY


def test_eight_gpus_and_a_new_order(amd_gpus: GpuProbe, amd_scenario: Scenario) -> None:
    """More GPUs than before are found, each by its own identity."""
    amd_gpus.collect()
    amd_scenario.write(*copies(8))
    samples = timed(amd_gpus, later=LATER)
    # The library counts them at its start; nothing is lost that would make us look.
    assert samples['gpu_devices{source="amd_smi"}'] == 2
    amd_scenario.write(*copies(8), "system generation 2")
    samples = timed(amd_gpus)
    assert len(starting_with(samples, "gpu_up")) == 8
    assert set(starting_with(samples, "gpu_up").values()) == {1}
