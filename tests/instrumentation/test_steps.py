"""The intervals of a step are cut into phases without overlap."""

from __future__ import annotations

from laggard._steps import flatten
from laggard.shared.phases import Phase

DATA, FORWARD, BACKWARD, OPTIMIZER = Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
COMMUNICATION, CHECKPOINT = Phase.COMMUNICATION, Phase.CHECKPOINT


def test_flatten_gives_time_to_the_innermost_interval_and_cuts_what_overlaps() -> None:
    """Whatever arrives, pieces never overlap, none is empty, and all lie inside the step."""
    pieces = flatten(
        [
            (BACKWARD, 10, 60),
            (COMMUNICATION, 20, 30),
            (COMMUNICATION, 50, 70),  # reaches past the one around it
            (CHECKPOINT, -5, 5),  # began before the step
            (OPTIMIZER, 90, 120),  # ends after it
            (DATA, 80, 80),
        ],
        0,
        100,
    )
    assert pieces == [
        (CHECKPOINT, 0, 5),
        (BACKWARD, 10, 20),
        (COMMUNICATION, 20, 30),
        (BACKWARD, 30, 50),
        (COMMUNICATION, 50, 60),
        (OPTIMIZER, 90, 100),
    ]


def test_flatten_of_what_is_nearly_in_order() -> None:
    """What is over an end of the step is cut, what is empty is nothing, and parts of a phase that touch are one."""
    assert list(flatten([(CHECKPOINT, -5, 5)], 0, 100)) == [(CHECKPOINT, 0, 5)]
    assert list(flatten([(DATA, 0, 5), (CHECKPOINT, 95, 105)], 0, 100)) == [(DATA, 0, 5), (CHECKPOINT, 95, 100)]
    assert list(flatten([(DATA, 80, 80)], 0, 100)) == []
    # The second wait begins where forward ends, and the first one with it.
    touching = [(COMMUNICATION, 10, 40), (FORWARD, 0, 40), (COMMUNICATION, 40, 70)]
    assert list(flatten(touching, 0, 100)) == [(FORWARD, 0, 10), (COMMUNICATION, 10, 70)]
    nested = [(DATA, 0, 5), (COMMUNICATION, 5, 10), (BACKWARD, 20, 30), (BACKWARD, 10, 60)]
    assert list(flatten(nested, 0, 100)) == [(DATA, 0, 5), (COMMUNICATION, 5, 10), (BACKWARD, 10, 60)]
