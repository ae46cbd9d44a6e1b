"""The bubble of a real pipeline, as its ranks measure it, is what the schedule of the evaluation has."""

from __future__ import annotations

import pytest

from tests.support.cases import usual
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver

FORWARD, BACKWARD = 0.01, 0.02


@pytest.mark.timed
@pytest.mark.parametrize("micro_batches", usual([2, 4], 4))
def test_a_bubble_is_communication(micro_batches: int, launcher: Launcher, receiver: Receiver) -> None:
    """Of two even stages each waits for a forward and a backward of the other, and each is a peer group of its own."""
    launcher.run_ranks(2, PROGRAMS / "bubble.py", *map(str, (micro_batches, FORWARD, BACKWARD)), **receiver.environment)
    for rank in ("0", "1"):
        (labels, wait), *_ = receiver.series(
            "training.phase.duration.quantile",
            training__rank=rank,
            training__phase="communication",
            training__quantile="p50",
        ).items()
        assert dict(labels)["training.peer_group"] == f"pp-{rank}"
        # What gloo and the scheduler add comes to a few milliseconds of a step.
        assert 0.95 * (FORWARD + BACKWARD) <= wait <= FORWARD + BACKWARD + 0.004 * micro_batches + 0.01
