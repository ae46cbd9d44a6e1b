"""The quick profile, live: a straggler is named in a third of the time, and nobody before."""

from __future__ import annotations

import time
from pathlib import Path

from tests.rules.engine import Play, prometheus, serving, wait_until


def test_a_straggler_is_named_within_45_seconds(tmp_path: Path) -> None:
    """With scrapes each five seconds and an excess of 1.5, after a healthy minute."""
    play = Play()
    with serving(play) as target, prometheus(target, tmp_path, profile="quick", every="5s") as server:

        def named() -> list[tuple[str, str]]:
            alerts = [each for each in server.firing() if each["alertname"] == "TrainingStraggler"]
            return [(each["training_rank"], each["training_phase"]) for each in alerts]

        time.sleep(60)
        assert named() == []
        play.data[2] += 0.05
        wait_until(lambda: bool(named()), 45)
        assert named() == [("2", "data")]
