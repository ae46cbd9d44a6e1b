"""Steps too short to record each of them: what is left out is counted, and what is recorded stands for the rest."""

from __future__ import annotations

import pytest

from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver


# Beside others a few steps wait for a processor as long as hundreds take, and are among the recorded ones or not.
@pytest.mark.timed
@pytest.mark.parametrize("rate", ["", "0"])
def test_of_short_steps_some_are_recorded_and_all_are_counted(
    launcher: Launcher, receiver: Receiver, rate: str
) -> None:
    """Recorded and left-out steps are all steps, in number and time; the recorded ones have the mean of all."""
    printed = launcher.run_forked(PROGRAMS / "short_steps.py", **receiver.environment, LAGGARD_STEP_RATE=rate)
    steps = int(printed.splitlines()[-1])
    step = receiver.value("training.step.duration")
    left_out = receiver.value("training.steps.excluded", training__reason="sampling")
    left_out_time = receiver.value("training.steps.excluded.duration", training__reason="sampling")
    warmup = receiver.value("training.steps.excluded", training__reason="warmup")
    assert receiver.value("training.steps") == steps
    assert step.count + left_out + warmup == steps
    assert receiver.value("training.phase.duration", training__phase="data").count == step.count
    if rate:
        assert left_out == left_out_time == 0
        return
    # All up to the first drain, a hundred in each second after it.
    assert 0.2 * steps < left_out < steps - 200
    # With every eighth step, not one in eight, the mean would be 0.5 ms or 2 ms.
    assert left_out_time / left_out == pytest.approx(step.mean, rel=0.25)
