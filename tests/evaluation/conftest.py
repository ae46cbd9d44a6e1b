"""What several tests of the evaluation need."""

from __future__ import annotations

import os

import pytest

from lab.evaluation import engine


@pytest.fixture
def built() -> None:
    """Skip a test, or fail it in continuous integration, where there is no rule engine."""
    if not engine.BINARY.exists():
        text = "nothing to play runs with: run scripts/tools/build_rule_engine.sh"
        pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)
