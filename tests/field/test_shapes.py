"""Each shape of loop that real projects have: nothing of laggard's disturbs it, and every phase is right in it."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.shared.metrics import SIGNALS
from laggard.shared.phases import RankState
from tests.field.observed import Beside, Rank, Run, summed
from tests.field.shapes import SHAPES, Shape

LOOPS = Path(__file__).parent / "loops"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_of_loop_is_undisturbed_and_measured(shape: Shape, tmp_path: Path) -> None:
    """Exit code, output and losses are those without laggard; steps are exact, phases and signals right."""
    for package in shape.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make field")
    program = (LOOPS / f"{shape.script}.py", *shape.arguments)
    plain, run = Beside(tmp_path).forked(shape.ranks, *program)
    assert plain.code == 0, plain.errors
    assert (run.code, run.output) == (plain.code, plain.output), run.errors
    assert run.losses() == plain.losses()
    if shape.ranks == 1:
        assert run.remarks() == plain.remarks()
    assert len(run.ranks) == (shape.own_processes or shape.ranks)
    wrong = [
        f"rank {rank.name}: {name} is {reported}, not {expected}"
        for rank in run.ranks
        for name, reported, expected in what_is_seen(shape, run, rank)
        if reported != expected
    ]
    assert not wrong, "\n".join(wrong)
    identities = {(snapshot.facts.run, snapshot.facts.rank) for snapshot in run.snapshots}
    assert len(identities) == (1 if shape.in_turn else len(run.ranks))


def what_is_seen(shape: Shape, run: Run, rank: Rank) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a rank reported, by name, and what is right."""
    snapshot = run.snapshot(rank)
    yield "state", (snapshot.state, snapshot.alive), (RankState.FINISHED, False)
    signals = {name: run.value(rank, "training.signal.available", training__signal=name) for name in SIGNALS}
    if shape.unseen_steps and not snapshot.steps:
        yield "signal optimizer", signals["optimizer"], 0.0
        yield "the advice", "laggard.step()" in run.errors, True
        return
    right = {name: float(name != shape.missing) for name in SIGNALS}
    if shape.either:
        right[shape.either] = float(bool(signals[shape.either]))
    yield "signals", signals, right
    counters = [run.value(rank, f"training.steps{kind}") for kind in ("", ".skipped")]
    yield "steps", (len(rank.updates), snapshot.steps, *counters), (*[shape.steps] * 3, shape.skipped)
    # But perhaps the last, which the process ends before another begins.
    yield "updates in each step", rank.updates_in_steps(), [1] * max(len(rank.traced), shape.steps - 1)
    yield "excluded steps", rank.left_out(), {1: "resume"} if shape.loads else {}
    unseen = shape.missing or (shape.either if shape.either and not right[shape.either] else "")
    yield "phases", wrong_phases(shape, rank, unseen), {}
    # What torch and laggard do for the first time lies between the script's calls and what is hooked of them.
    first = wrong_phases(shape, rank, unseen, slice(1))
    yield "first step", {phase: first[phase] for phase in ("evaluation", "checkpoint") if phase in first}, {}


def wrong_phases(shape: Shape, rank: Rank, unseen: str, steps: slice = slice(1, None)) -> dict[str, str]:
    """Phases that differ from the stopwatch by more than 5 %, and by more than 1 ms a step.

    What is `other` may differ by as much as all phases together. Between a cut of the stopwatch and what laggard hooks
    of the call lies torch's own code. Where the thread waited for a processor, it may have done so there: a step may
    differ by that too, though not most steps.
    """
    traced = rank.traced[steps]
    expected = [joined(shape, rank.stopwatch(step), unseen) for step in traced]
    reported = [joined(shape, rank.reported(step), unseen) for step in traced]
    total = sum(summed(expected).values())
    wrong: dict[str, str] = {}
    for phase in sorted({phase for seconds in (*expected, *reported) for phase in seconds}):
        ours = [seconds.get(phase, 0.0) for seconds in reported]
        theirs = [seconds.get(phase, 0.0) for seconds in expected]
        differences = [one - other for one, other in zip(ours, theirs, strict=True)]
        beyond = [max(0, abs(one) - rank.waited(step)) for one, step in zip(differences, traced, strict=True)]
        allowed = max(0.001 * len(rank.traced), 0.05 * (total if phase == "other" else sum(theirs)))
        if max(sum(beyond), abs(statistics.median(differences)) * len(traced)) > allowed:
            wrong[phase] = f"{sum(ours) * 1e3:.1f} ms, stopwatch {sum(theirs) * 1e3:.1f} ms"
    return wrong


def joined(shape: Shape, seconds: dict[str, float], unseen: str) -> dict[str, float]:
    """Return a step's phases, those as one that cannot be told apart in this shape."""
    seconds = dict(seconds)
    if shape.waits:
        seconds["waiting"] = sum(seconds.pop(phase, 0.0) for phase in (*sorted(shape.waits), "communication"))
    elif unseen:
        seconds["other"] = seconds.get("other", 0.0) + seconds.pop(unseen, 0.0)
    return seconds
