"""Fixtures of tests that launch real training scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launch import Launcher
from tests.support.otlp import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An OTLP receiver on loopback."""
    with Receiver() as running:
        yield running


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Starts instrumented commands."""
    with Launcher(tmp_path) as running:
        yield running
