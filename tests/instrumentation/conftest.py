"""Fixtures of tests that launch real training scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard import _process
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


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_process.Process]:
    """This process, instrumented; its drain never starts, so that a test sees the recorder's events."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    _process.instrument()
    current = _process.current()
    assert current is not None
    current._settled = True
    yield current
    if _process.current() is not None:
        _process.uninstrument()
