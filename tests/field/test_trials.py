"""Trials of Ray Tune: each is a run of its own, and ends as its function does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.shared.phases import RankState
from tests.support.launch import Launcher

pytestmark = pytest.mark.field


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: make field")
def test_a_trial_that_raises_has_failed(tmp_path: Path) -> None:
    """Ray catches the exception and ends the worker cleanly; the rank says what its function raised."""
    with Launcher(tmp_path) as launcher:
        script = Path(__file__).with_name("live") / "ray_trial.py"
        process = launcher._start(Path(sys.executable).with_name("laggard"), "run", sys.executable, script)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        files = [statefile.read(path) for path in launcher.state_directory.glob(f"*{statefile.SUFFIX}")]
    assert sorted((file.state, file.ending.exception, file.facts.workload, file.steps) for file in files) == [
        (RankState.FINISHED, "", "ray_trial", 10),
        (RankState.FAILED, "ValueError", "ray_trial", 10),
    ]
