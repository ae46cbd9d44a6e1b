"""Every shape of training loop: how many steps it takes, and what they are made of."""

from __future__ import annotations

import pytest

from tests.instrumentation.inside import instrumented, phases, steps_of
from tests.instrumentation.loops import LOOPS


@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_has_its_steps_and_phases(name: str) -> None:
    """The number of steps is exactly that of the updates, however the loop is written."""
    loop, expected = LOOPS[name]
    with instrumented() as process:
        loop()
        steps = steps_of(process)
        assert process.recorder.phase == 0
    assert len(steps) == expected.steps
    for step in steps[1:]:
        assert phases(step) - expected.sometimes == expected.phases - expected.sometimes
    assert expected.sometimes <= set().union(*map(phases, steps))
    assert all(sum(step.phases) == step.duration for step in steps)
