"""What the demo does to the job, and what must be found: data that the play walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RANKS = 4

#: A fault is detected in time within so many seconds.
DETECTION_SECONDS = 60


@dataclass(frozen=True)
class Fault:
    """A fault in one rank, or in all of them. ``steps`` is how much longer it makes a step, in healthy steps."""

    place: Literal["data", "backward", "stop"]
    rank: int | None
    steps: float = 0.0


@dataclass(frozen=True)
class Truth:
    """The verdict that must be found, and no other. An empty phase: any, since nobody knows where a signal hits."""

    alert: str
    rank: str = ""
    phase: str = ""
    #: What also fires for the same rank, and would be inhibited by the verdict.
    symptoms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Act:
    """One part of the demo. Without a fault it is right when nothing fires for ``seconds``."""

    title: str
    fault: Fault | None = None
    truth: Truth | None = None
    seconds: float = 0.0


#: The loader's worker reads ahead while a step runs, so it must need longer than a step for anybody to wait.
_SLOW_LOADER_STEPS = 2.0

ACTS = (
    Act("healthy", seconds=30),
    Act(
        "rank 2 slow in data loading",
        Fault("data", 2, _SLOW_LOADER_STEPS),
        Truth("TrainingStraggler", rank="2", phase="data"),
    ),
    Act("rank 1 slow in backward", Fault("backward", 1, 0.8), Truth("TrainingStraggler", rank="1", phase="backward")),
    Act("all ranks input-bound", Fault("data", None, _SLOW_LOADER_STEPS), Truth("TrainingInputBound", phase="data")),
    Act(
        "rank 3 frozen (SIGSTOP)",
        Fault("stop", 3),
        Truth("TrainingRankFrozen", rank="3", symptoms=("TrainingStalled",)),
    ),
    # The ranks end two seconds apart.
    Act("the run ends", seconds=20),
)
