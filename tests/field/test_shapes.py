"""Each shape of loop that real projects have: nothing of laggard's disturbs it, and every phase is right in it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from laggard.conventions import SIGNALS, RankState
from tests.field.observed import Rank, Run, run_beside_plain
from tests.field.shapes import SHAPES, Shape

LOOPS = Path(__file__).parent / "loops"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_of_loop_is_undisturbed_and_measured(shape: Shape, tmp_path: Path) -> None:
    """Exit code, output and losses are those without laggard; steps are exact, phases and signals right."""
    for package in shape.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make field")
    program = (LOOPS / f"{shape.script}.py", *shape.arguments)
    plain, run = run_beside_plain(tmp_path, shape.ranks, *program)
    assert plain.code == 0, plain.errors
    assert (run.code, run.output) == (plain.code, plain.output), run.errors
    assert run.losses() == plain.losses()
    if shape.ranks == 1:
        assert run.remarks() == plain.remarks()
    assert len(run.ranks) == (shape.own_processes or shape.ranks)
    wrong: dict[str, dict[str, str]] = {}
    for rank in run.ranks:
        expected, reported = what_is_seen(shape, run, rank)
        wrong[rank.name] = {
            name: f"{reported[name]}, not {value}" for name, value in expected.items() if reported[name] != value
        }
    assert wrong == {rank.name: {} for rank in run.ranks}
    identities = {(snapshot.facts.run, snapshot.facts.rank) for snapshot in run.snapshots}
    assert len(identities) == len(run.ranks) or "laggard:" in run.errors


def what_is_seen(shape: Shape, run: Run, rank: Rank) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is right for a rank, and what it reported."""
    snapshot = run.snapshot(rank)
    signals = {name: run.value(rank, "training.signal.available", training__signal=name) for name in SIGNALS}
    right = {name: float(name != shape.missing) for name in SIGNALS}
    if shape.either:
        right[shape.either] = signals[shape.either] or 0.0
    expected: dict[str, Any] = {"state": RankState.FINISHED, "alive": False, "signals": right}
    reported: dict[str, Any] = {"state": snapshot.state, "alive": snapshot.alive, "signals": signals}
    if shape.unseen_steps and not snapshot.steps:
        # Of no step nothing else is known.
        right |= {name: signals[name] or 0.0 for name in SIGNALS if name != shape.missing}
        return {**expected, "advice": True}, {**reported, "advice": "laggard.step()" in run.errors}
    unseen = shape.either if shape.either and not right[shape.either] else ""
    expected |= {
        "steps": (shape.steps, shape.steps, shape.steps, shape.skipped),
        # But perhaps the last, which the process ends before another begins.
        "updates in each step": [1] * max(len(rank.traced), shape.steps - 1),
        "excluded": ["resume" if shape.loads else ""] + [""] * (len(rank.traced) - 1),
        "phases": {},
        "phases before the first step": {},
    }
    reported |= {
        "steps": (
            len(rank.updates),
            snapshot.steps,
            run.value(rank, "training.steps"),
            run.value(rank, "training.steps.skipped"),
        ),
        "updates in each step": rank.updates_in_steps(),
        "excluded": [step["excluded"] for step in rank.traced],
        "phases": wrong_phases(shape, rank, unseen),
        # What torch and laggard do for the first time lies between the script's calls and what is hooked of them.
        "phases before the first step": {
            phase: difference
            for phase, difference in wrong_phases(shape, rank, unseen, slice(1)).items()
            if phase in ("evaluation", "checkpoint")
        },
    }
    return expected, reported


def wrong_phases(shape: Shape, rank: Rank, unseen: str, steps: slice = slice(1, None)) -> dict[str, str]:
    """Phases that differ from the stopwatch by more than 5 %, and by more than 1 ms and 0.2 ms a step."""
    expected, reported = rank.stopwatch(steps), rank.reported(steps)
    for seconds in (expected, reported):
        if unseen:
            seconds["other"] += seconds.pop(unseen, 0.0)
        if shape.waits:
            seconds["waiting"] = sum(seconds.pop(phase, 0.0) for phase in (*sorted(shape.waits), "communication"))
    tolerance = 0.001 + 0.0002 * len(rank.traced)
    return {
        phase: f"{reported[phase] * 1e3:.1f} ms, stopwatch {expected[phase] * 1e3:.1f} ms"
        for phase in sorted(expected.keys() | reported.keys())
        if reported[phase] != pytest.approx(expected[phase], rel=0.05, abs=tolerance)
    }
