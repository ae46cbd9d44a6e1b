"""Fixtures of the exporter's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard_exporter.gpus import devices, session
from tests.exporter.gpus.support import GROUP_SECONDS
from tests.exporter.support import GpuProbe, amd_probe, nvml_probe
from tests.fake_amd_smi import fake as amd
from tests.fake_nvml.fake import Scenario, build


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled fake library."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """Return a scenario of two healthy GPUs."""
    return Scenario(tmp_path / "gpus.scenario")


@pytest.fixture
def probe(fake_nvml: Path, scenario: Scenario) -> Iterator[GpuProbe]:
    """Return the NVML collector, running in a process of its own over the fake library."""
    with nvml_probe(scenario.environment(fake_nvml)) as started:
        yield started


@pytest.fixture(scope="session")
def fake_amd_smi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled fake of AMD SMI."""
    return amd.build(tmp_path_factory.mktemp("amd_smi"))


@pytest.fixture
def amd_scenario(tmp_path: Path) -> amd.Scenario:
    """Return a scenario of two healthy GPUs of AMD."""
    return amd.Scenario(tmp_path / "amd.scenario")


@pytest.fixture
def amd_gpus(fake_amd_smi: Path, amd_scenario: amd.Scenario, tmp_path: Path) -> Iterator[GpuProbe]:
    """Return the collector of AMD's GPUs, running in a process of its own over the fake library."""
    with amd_probe(amd_scenario.environment(fake_amd_smi), sysfs=amd.sysfs(tmp_path / "amd-sys")) as started:
        yield started


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give calls of a GPU's library less time, so that a fault is over sooner."""
    monkeypatch.setattr(session, "GROUP_SECONDS", GROUP_SECONDS)
    monkeypatch.setattr(devices, "OPEN_SECONDS", 1.0)
    monkeypatch.setattr(session, "OPEN_SECONDS", 1.0)
