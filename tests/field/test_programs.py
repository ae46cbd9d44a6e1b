"""Real frameworks, started as their users start them: nothing disturbs them, and their steps are ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.shared.metrics import SIGNALS
from laggard.shared.phases import RankState
from tests.field.observed import Beside, Rank, Run, summed
from tests.field.programs import PROGRAMS, Program

pytestmark = pytest.mark.field

SCRIPTS = Path(__file__).parent / "frameworks"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_framework_is_undisturbed_and_measured(program: Program, tmp_path: Path) -> None:
    """Exit code and losses are those without laggard, steps those that the framework counts, and phases are sane."""
    if importlib.util.find_spec(program.package) is None:
        pytest.skip(f"{program.package} is not installed: make field")
    plain, run = Beside(tmp_path).started(SCRIPTS / f"{program.script}.py", *program.arguments)
    assert plain.code == 0, plain.errors
    assert run.code == plain.code, run.errors
    assert len(run.ranks) == program.ranks
    assert run.losses() == plain.losses()
    assert all(run.losses().values())
    wrong = [
        f"rank {rank.name}: {name} is {reported}, not {expected}"
        for rank in run.ranks
        for name, reported, expected in what_is_seen(program, run, rank)
        if reported != expected
    ]
    assert not wrong, "\n".join(wrong)


def what_is_seen(program: Program, run: Run, rank: Rank) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a rank reported, by name, and what is right."""
    snapshot = run.snapshot(rank)
    yield "state", (snapshot.state, snapshot.alive), (RankState.FINISHED, False)
    signals = {name: run.value(rank, "training.signal.available", training__signal=name) for name in SIGNALS}
    right = dict.fromkeys(SIGNALS, 1.0)
    if program.unseen:
        right[program.unseen] = float(bool(signals[program.unseen]))
    yield "signals", signals, right
    yield "steps", (snapshot.steps, run.value(rank, "training.steps")), (rank.counted, rank.counted)
    yield "excluded steps", rank.left_out(), {1: "resume"} if program.loads else {}
    seen = {phase for phase, seconds in summed(map(rank.reported, rank.traced)).items() if seconds}
    yield "phases", seen - {"other", "communication"}, {name for name in program.phases if right.get(name, 1.0)}
    yield "durations", wrong_durations(program, rank), {}


def wrong_durations(program: Program, rank: Rank) -> dict[str, str]:
    """Phases that are shorter than what model and data noted of them, or much longer.

    A framework adds its own work around them, and DDP its waits to backward. A model that notes nothing says nothing.
    """
    steps = rank.traced[1:]
    noted, reported = summed(map(rank.stopwatch, steps)), summed(map(rank.reported, steps))
    room = 0.003 * len(rank.traced)
    return {
        phase: f"{reported[phase] * 1e3:.1f} ms, noted {seconds * 1e3:.1f} ms"
        for phase, seconds in noted.items()
        if phase not in {"other", program.unseen} and seconds
        if not 0.95 * seconds - 0.001 <= reported[phase] <= 1.25 * seconds + room
    }
