"""The rules that laggard is compared with are fair: they are evaluated, and they find what they look for."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.benchmarks import verdicts
from lab.evaluation import engine
from lab.evaluation.plan import cases


def outcome(alert: str, kind: str, *, phase: bool = True, delay: float | None = None) -> dict[str, object]:
    """Return what is known of one alert."""
    return {"alert": alert, "kind": kind, "rank": "1", "delay": delay, "phase_right": phase, "info": False}


def test_figures_count_ranks_of_slow_runs_and_alerts_of_healthy_ones() -> None:
    """Other alerts count nowhere; a healthy run with two alerts is one run."""
    slow = {"scenario": "slow_data", "expected": [verdicts.ALERT]}
    records = [
        {**slow, "outcomes": [outcome(verdicts.ALERT, "found", delay=60.0), outcome(verdicts.ALERT, "missed")]},
        {**slow, "outcomes": [outcome(verdicts.ALERT, "found", delay=80.0, phase=False)]},
        {**slow, "outcomes": [outcome(verdicts.ALERT, "missed"), outcome(verdicts.ALERT, "wrong rank")]},
        {"scenario": "healthy", "expected": [], "outcomes": [outcome(verdicts.ALERT, "false")] * 2},
        {"scenario": "healthy_noisy", "expected": [], "outcomes": [outcome("TrainingJitter", "false")]},
    ]
    found = verdicts.figures(records)
    assert found == {
        "slow_runs": 3,
        "slow_ranks": 4,
        "found": 2,
        "with_phase": 1,
        "runs_with_wrong_rank": 1,
        "calm_runs": 2,
        "calm_runs_with_alert": 1,
        "median_delay": 70.0,
    }
    assert verdicts.table({"ours": found}).splitlines()[-1] == "| ours | 2 of 4 | 1 | 1 of 3 | 1 of 2 | 70 s |"


@pytest.mark.usefixtures("built")
def test_who_waits_longest_is_not_who_is_slow(tmp_path: Path) -> None:
    """Of four ranks one is slow: laggard names it, step times nobody, the longest collectives others."""
    (case,) = cases(42, ["slow_forward"], [4])
    players = verdicts.players(tmp_path)
    assert len(players) == 1 + sum(map(len, verdicts.LIMITS.values()))
    (slow,) = case.expected[0].culprits
    others = {str(rank) for rank in range(4) if rank != slow}
    named = {
        name: {each.rank for each in engine.run([case.job], 42, files=files).fired if each.alert == verdicts.ALERT}
        for name, files in players.items()
        if name in {"laggard", "step-time, above 1.3", "longest-collective, above 1.1"}
    }
    assert named["laggard"] == {str(slow)}
    assert named["step-time, above 1.3"] == set()
    assert named["longest-collective, above 1.1"] & others
    assert str(slow) not in named["longest-collective, above 1.1"]
