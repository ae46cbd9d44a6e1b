"""Fixtures of the exporter's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exporter.support import NvmlProbe, nvml_probe
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
def probe(fake_nvml: Path, scenario: Scenario) -> Iterator[NvmlProbe]:
    """Return the NVML collector, running in a process of its own over the fake library."""
    with nvml_probe(scenario.environment(fake_nvml)) as started:
        yield started
