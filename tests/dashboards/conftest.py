"""Simulated runs on a real Prometheus, played once for all tests of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.evaluation import engine
from tests.dashboards.world import World, world


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Serve the runs."""
    for binary, how in ((shutil.which("prometheus"), "apt-get install prometheus"),
                        (engine.BINARY.exists(), "scripts/tools/build_rule_engine.sh")):  # fmt: skip
        if not binary:
            text = f"nothing to play runs with: run {how}"
            pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)
    folder: Path = tmp_path_factory.mktemp("world")
    with world(folder) as found:
        yield found
