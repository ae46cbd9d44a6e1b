"""Four real gloo ranks, a delay in each place in turn: phases agree with a stopwatch, own time names the culprit."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import usual
from tests.support.launch import PROGRAMS, Launcher
from tests.support.measured_once import MeasuredOnce
from tests.support.otlp import Receiver

#: Four ranks on two processors: what is put aside between two readings of the clock is a millisecond off in the mean.
#: What a busy machine adds to a rank the stopwatch sees too, so that is what laggard is held against.
pytestmark = pytest.mark.timed

SLOW_RANK = 2
EXTRA = 0.030
#: Phase in which the delay must appear.
PLACES = {"data": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer", "host": "other"}


def train(place: str, slow_rank: int, folder: Path, *options: str) -> list[Any]:
    """Run the program and return, for each rank, its stopwatch and what laggard reported, in seconds per step."""
    program = [PROGRAMS / "straggler.py", place, "--slow-rank", str(slow_rank), "--out", folder, "--steps", "25"]
    # The same five steps are left out by the stopwatch.
    with Receiver() as receiver, Launcher(folder) as launcher:
        environment = {"LAGGARD_WARMUP_STEPS": "5", **receiver.environment}
        launcher.run_ranks(4, *program, *options, **environment)
    ranks: list[Any] = []
    for rank in range(4):
        stopwatch = json.loads((folder / f"{rank}.json").read_text())
        phases = receiver.series("training.phase.duration", training__rank=str(rank))
        reported = {dict(labels)["training.phase"]: histogram.mean for labels, histogram in phases.items()}
        step = receiver.value("training.step.duration", training__rank=str(rank))
        own = receiver.value("training.step.own.duration", training__rank=str(rank))
        assert receiver.value("training.steps", training__rank=str(rank)) == 30
        assert step.count == 24  # 30 steps without 5 of warm-up and the last, whose end never came
        ranks.append((stopwatch, {**reported, "step": step.mean, "own": own.mean}))
    return ranks


def watched(stopwatch: dict[str, float]) -> dict[str, float]:
    """Phases, step and own time by the stopwatch, and what it saw outside of all phases."""
    seen = {name: seconds for name, seconds in stopwatch.items() if name not in ("rank", "steps")}
    phases = sum(seconds for name, seconds in seen.items() if name != "step")
    return {**seen, "own": seen["step"] - seen["communication"], "other": seen["step"] - phases}


def assert_agrees(stopwatch: dict[str, float], reported: dict[str, float]) -> None:
    """Every phase, the step and the own time agree to 1 % or 1 ms."""
    for name, seconds in watched(stopwatch).items():
        assert reported[name] == pytest.approx(seconds, rel=0.01, abs=0.001), name
    phases = sum(seconds for name, seconds in reported.items() if name not in ("step", "own"))
    assert phases == pytest.approx(reported["step"], rel=1e-6)
    assert all(seconds >= 0 for seconds in reported.values())


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> MeasuredOnce[list[Any]]:
    """Stopwatch and report of each rank of a run without a delay."""
    return MeasuredOnce(lambda _: train("none", SLOW_RANK, tmp_path_factory.mktemp("healthy")))


def test_healthy_ranks_are_as_the_stopwatch_has_them(healthy: MeasuredOnce[list[Any]]) -> None:
    """Without a delay their times are the stopwatch's, and a loop without host work has less than 5 % of other."""
    with healthy.judged() as ranks:
        for stopwatch, reported in ranks:
            assert_agrees(stopwatch, reported)
            assert reported["other"] < 0.05 * reported["step"]


# The places differ in what the recorder sees, which test_layouts.py looks at in each of them.
@pytest.mark.parametrize("place", usual(PLACES, "backward"))
def test_a_delay_is_found_in_its_rank_and_phase_only(
    place: str, tmp_path: Path, healthy: MeasuredOnce[list[Any]]
) -> None:
    """The culprit's own time stands out, and the delay is in its phase and in no other."""
    ranks = train(place, SLOW_RANK, tmp_path)
    for stopwatch, reported in ranks:
        assert_agrees(stopwatch, reported)
    own = [reported["own"] for _, reported in ranks]
    culprit = own.pop(SLOW_RANK)
    assert culprit >= 1.3 * statistics.median(own)
    with healthy.judged() as others:
        for rank, (stopwatch, reported) in enumerate(ranks):
            for phase in ("data", "forward", "backward", "optimizer", "other"):
                longer = watched(stopwatch)[phase] - statistics.median(watched(each)[phase] for each, _ in others)
                usual = statistics.median(other[phase] for _, other in others)
                assert reported[phase] - usual == pytest.approx(longer, abs=0.0025), (rank, phase)
                if (rank, phase) == (SLOW_RANK, PLACES[place]):
                    assert longer > EXTRA / 2, phase


def test_the_broadcast_of_buffers_is_waiting_not_forward(tmp_path: Path) -> None:
    """Ranks that wait for rank 0's buffers inside their forward are not slow in forward."""
    ranks = train("data", 0, tmp_path, "--buffers")
    own = [reported["own"] for _, reported in ranks]
    assert own[0] >= 1.3 * statistics.median(own[1:])
    # The stopwatch around the call of the model does see the wait: that is the trap.
    waits = [stopwatch["forward"] - reported["forward"] for stopwatch, reported in ranks]
    assert waits[0] < EXTRA / 10
    assert min(waits[1:]) > 0.8 * EXTRA
