"""The rules' plays give AMD's GPUs what the backend exposes: the table of ``promtool-tests/gpu_sources.py``."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.exporter.amd_smi.support import BUSY, LOST, METRICS, residency
from tests.exporter.gpus.support import about, gpu
from tests.exporter.support import GpuProbe, starting_with
from tests.fake_amd_smi.fake import Scenario

_TABLE = runpy.run_path(str(Path(__file__).parents[3] / "promtool-tests/gpu_sources.py"))
FAULTS: dict[str, Any] = _TABLE["FAULTS"]
HEALTHY: dict[str, float] = _TABLE["HEALTHY"]
SOURCE: Any = _TABLE["SOURCES"]["laggard-amd"]

SECONDS = 64
#: How often the firmware looks for what holds the clocks down.
LOOKS = 1000
_SPEEDS = {3: 8000, 5: 32000}


def lines(facts: dict[str, float], seconds: int) -> list[str]:
    """Return what AMD SMI says of a GPU with these facts, ``seconds`` after a beginning."""
    mib = {name: round(facts[name] / 2**20) for name in ("memory_used", "memory_free")}
    found = [
        f"{METRICS}.average_gfx_activity {facts['utilization'] * 100:.0f}",
        f"{METRICS}.current_gfxclks.0 {facts['clock'] / 1e6:.0f}",
        f"{METRICS}.current_gfxclk {facts['clock'] / 1e6:.0f}",
        f"amdsmi_get_clock_info.0 {facts['clock_max'] / 1e6:.0f}",
        f"amdsmi_get_gpu_vram_usage.vram_used {mib['memory_used']}",
        f"amdsmi_get_gpu_vram_usage.vram_total {mib['memory_used'] + mib['memory_free']}",
        f"amdsmi_get_pcie_info.pcie_speed {_SPEEDS[int(facts['generation'])]}",
        f"amdsmi_get_pcie_info.max_pcie_speed {_SPEEDS[int(facts['generation_max'])]}",
        f"amdsmi_get_pcie_info.pcie_width {facts['width']:.0f}",
        f"amdsmi_get_pcie_info.max_pcie_width {facts['width_max']:.0f}",
        f"amdsmi_get_gpu_bad_page_info {'0 2' if facts['remap_failed'] else '0'}",
        f"amdsmi_get_gpu_total_ecc_count.uncorrectable_count {facts['uncorrected'] * seconds:.0f}",
    ]
    held = {"ppt": round(facts["capped"] * LOOKS * seconds), "hbm_thm": round(facts["hot"] * LOOKS * seconds)}
    return [*(f"0 {line}" for line in found), *residency(LOOKS * seconds, seconds, **held)]


def test_every_fault_is_known() -> None:
    """No fault is stated as unknown, and each has series or a state that shows it."""
    assert SOURCE.unknown == {}
    assert [name for name, fault in FAULTS.items() if not fault.changes and name not in SOURCE.also] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault(amd_gpus: GpuProbe, amd_scenario: Scenario, name: str) -> None:
    """A GPU with the fault shows each fact by the series of the table, with the value that the plays give it."""
    facts = {**HEALTHY, **FAULTS[name].changes}
    amd_scenario.write(*lines(facts, SECONDS))
    first = amd_gpus.collect()
    amd_scenario.write(*lines(facts, 2 * SECONDS))
    second = amd_gpus.collect()
    found: dict[str, float] = {}
    for fact, shown in SOURCE.shown.items():
        series, _, labels = shown.series.removesuffix("}").partition("{")
        key = gpu(series, BUSY, **dict(pair.split("=") for pair in labels.split(",") if pair))
        found[fact] = (second[key] - first[key]) / SECONDS if shown.counted else second[key]
    assert found == facts


def test_a_lost_gpu_and_its_driver(amd_gpus: GpuProbe, amd_scenario: Scenario) -> None:
    """A lost GPU has what the plays give it and its facts, and the driver is told for the host; there are no XIDs."""
    amd_gpus.collect()
    amd_scenario.write("0 * !2")
    samples = amd_gpus.collect()
    assert about(samples, BUSY) == LOST
    assert SOURCE.gone == {"gpu_up": 0}
    assert starting_with(samples, "gpu_xid") == {}
    (driver,) = starting_with(samples, "gpu_driver_info")
    assert 'driver="6.12.12"' in driver
    assert 'host_name="node-1"' in driver
    assert SOURCE.xid is None
