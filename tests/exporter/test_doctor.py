"""``laggard-exporter doctor`` tells what works on a node, what does not, and why."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from laggard_exporter import doctor
from laggard_exporter.gpus.conventions import AMD_SMI, GPU_DEVICES, NVML
from laggard_exporter.runner import Outcome
from laggard_exporter.samples import Sample, grouped
from tests.exporter.support import EXPORTER, TIMEOUT, dead_file, fresh
from tests.exporter.trees import HOST_PROCFS, INFINIBAND_SYSFS, write_tree
from tests.fake_amd_smi import fake as amd
from tests.fake_nvml.fake import Scenario


def run(tmp_path: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run the doctor on a made-up node and return exit code and output."""
    procfs, sysfs = write_tree(tmp_path / "proc", HOST_PROCFS), write_tree(tmp_path / "sys", INFINIBAND_SYSFS)
    command = [str(EXPORTER), "doctor", f"--path.procfs={procfs}", f"--path.sysfs={sysfs}", *arguments]
    command += [f"--state.directory={tmp_path / 'ranks'}"]
    environment = {**os.environ, **variables}
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT * 2, check=False, env=environment)
    assert result.stderr == ""
    return result.returncode, result.stdout


def test_a_node(tmp_path: Path, fake_nvml: Path, scenario: Scenario) -> None:
    """Each collector has a status and a reason; what the GPUs do not tell is listed; all that should work does."""
    dead_file(tmp_path / "ranks", fresh())
    code, text = run(tmp_path, "--json", **scenario.environment(fake_nvml))
    document: dict[str, Any] = json.loads(text)
    assert (code, document["ok"]) == (0, True)
    found = {entry["collector"]: (entry["status"], entry["detail"]) for entry in document["collectors"]}
    assert found["nvml"] == ("works", "2 GPUs")
    assert found["state"] == ("works", "1 rank")
    assert found["workers"] == ("works", "nothing to say now: no rank runs")
    assert found["infiniband"] == ("works", "")
    assert found["cgroup"] == ("absent", f"{tmp_path / 'sys/fs/cgroup'} has no control groups")
    assert {entry["collector"]: entry["series"] for entry in document["collectors"]}["pressure"] == 6


def test_a_table(tmp_path: Path) -> None:
    """For people the result comes first, then one line for each collector, grouped by what is said of it."""
    only = ["--collector.disable-defaults", "--collector.pressure", "--collector.state", "--collector.cgroup"]
    code, text = run(tmp_path, *only)
    assert code == 0
    assert text.splitlines() == [
        "Everything that this node has works.",
        "",
        "Works:",
        "  state     6 series  the folder of state files does not exist yet: the first rank on this node makes it",
        "  pressure  6 series",
        "",
        "Not on this node:",
        f"  cgroup    0 series  {tmp_path / 'sys/fs/cgroup'} has no control groups",
    ]


def test_something_that_should_work(tmp_path: Path) -> None:
    """A collector that fails makes the exit code 1 and is named first."""
    write_tree(tmp_path / "proc", HOST_PROCFS)
    broken = write_tree(tmp_path / "broken", {"diskstats": "nonsense\n"})
    only = ["--collector.disable-defaults", "--collector.disk"]
    code, text = run(tmp_path, *only, f"--path.procfs={broken}")
    assert code == 1
    said = "a line must be about a disk, got 'nonsense'"
    assert text.splitlines() == [
        "Does not work and should: disk.",
        "",
        "Fails:",
        f"  disk  0 series  failed: ValueError: {broken / 'diskstats'}: {said}",
    ]


def gpus(collector: str, status: str, count: int | None) -> tuple[str, str]:
    """Return what is said of a vendor's library with this status beside so many GPUs on the PCI bus."""
    families, source = {"nvml": (NVML, "pci"), "amd_smi": (AMD_SMI, "pci_amd")}[collector]
    samples = [Sample(families.status, ("available", "node-1"), 0), Sample(families.status, (status, "node-1"), 1)]
    if count is not None:
        samples.append(Sample(GPU_DEVICES, (source,), count))
    found = doctor.finding(collector, Outcome(grouped(samples)))
    return found.status, found.detail


@pytest.mark.parametrize(("collector", "library"), [("nvml", "NVML"), ("amd_smi", "AMD SMI")])
@pytest.mark.parametrize(
    ("status", "count", "expected"),
    [
        ("library_not_found", None, ("absent", "{} says library_not_found")),
        ("driver_not_loaded", 0, ("absent", "{} says driver_not_loaded")),
        ("version_mismatch", 0, ("fails", "{} says version_mismatch")),
        (
            "library_not_found",
            8,
            ("fails", "the PCI bus shows 8 GPUs, {} says library_not_found: is the driver loaded and readable?"),
        ),
    ],
)
def test_libraries(collector: str, library: str, status: str, count: int | None, expected: tuple[str, str]) -> None:
    """No driver is normal on a node without GPUs; with GPUs, or with a broken driver, something should work."""
    assert gpus(collector, status, count) == (expected[0], expected[1].format(library))


def test_a_node_of_amd(tmp_path: Path, fake_amd_smi: Path, amd_scenario: amd.Scenario) -> None:
    """The vendor's collector works and says how many GPUs; without the library it fails, and says which is missing."""
    write_tree(tmp_path / "sys", INFINIBAND_SYSFS)
    amd.sysfs(tmp_path / "sys")
    only = ["--json", "--collector.disable-defaults", "--collector.amd_smi", "--collector.nvml"]
    for variables, expected in (
        (amd_scenario.environment(fake_amd_smi), (0, ("works", "2 GPUs"))),
        (
            {},
            (
                1,
                (
                    "fails",
                    "the PCI bus shows 2 GPUs, AMD SMI says library_not_found: is the driver loaded and readable?",
                ),
            ),
        ),
    ):
        code, text = run(tmp_path, *only, **variables)
        found = {entry["collector"]: (entry["status"], entry["detail"]) for entry in json.loads(text)["collectors"]}
        assert (code, found["amd_smi"]) == expected
        assert found["nvml"] == ("absent", "NVML says library_not_found")


def test_notes_and_what_is_missing() -> None:
    """What a collector leaves out is told with the reason."""
    found = doctor.finding("workers", Outcome({}, notes=("kills are not told by rank",)))
    assert (found.status, found.detail) == ("works", "nothing to say now: no rank runs; kills are not told by rank")
    table = doctor.as_table([doctor.Finding("nvml", "works", 3, "1 GPU", ("gpu_a", "gpu_b"))])
    assert table.splitlines() == [
        "Everything that this node has works.",
        "",
        "Works:",
        "  nvml  3 series  1 GPU",
        "",
        "Not reported by the kernel, driver or hardware of this node (nvml):",
        "  gpu_a",
        "  gpu_b",
    ]
