"""What a step is made of, and what a rank may be in: its phases, its states and its conditions."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """What a training step is made of: the phases of a step add up to the step.

    The values are stored in state files; a new phase gets a new number, an old number is never used again.
    """

    OTHER = 0
    DATA = 1
    H2D = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    COMMUNICATION = 6
    CHECKPOINT = 7
    EVALUATION = 8

    @property
    def label(self) -> str:
        """The value of the ``training.phase`` attribute."""
        return self.name.lower()


#: Phases in which a rank does its own work; the rest is waiting (communication) or not part of a step's work.
OWN_PHASES = frozenset({Phase.OTHER, Phase.DATA, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER})


class RankState(IntEnum):
    """Life of one rank. ``starting`` lasts until the first step ended. The values are stored in state files."""

    STARTING = 0
    RUNNING = 1
    FINISHED = 2
    FAILED = 3

    @property
    def label(self) -> str:
        """The value of the ``training.state`` attribute."""
        return self.name.lower()


#: Phases that are part of any step. Of one that comes once in a while, most quantiles are 0.
QUANTILE_PHASES = (*sorted(OWN_PHASES), Phase.COMMUNICATION)

#: A rank without a sign of progress for longer than this, in seconds, and than a step usually takes, stands still. The
#: node exporter says where a rank stands of these alone, since of ten thousand that go on nobody asks; of one that goes
#: on again for so long after, so that whoever looks a minute back finds out.
STILL_SECONDS = 1.0
STOOD_STILL_SECONDS = 120.0


class Condition(IntEnum):
    """Whether a rank stands still, and why. A rank that two hosts know is in the last of its conditions."""

    DEAD = 0
    ENDED = 1
    STOPPED = 2
    QUIET = 3
    GOES_ON = 4
