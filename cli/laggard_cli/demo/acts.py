"""What the demo does to the job, and what must be found: data that the play walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RANKS = 4

#: Bytes that leak in a second: a second's worth of allocation takes milliseconds, and what a process grows by at the
#: beginning of its training is a thirtieth of it.
LEAK_RATE = 16e6


@dataclass(frozen=True)
class Fault:
    """A fault in one rank, or in all of them.

    How bad it is: ``steps`` in healthy steps of the run, by which a step takes longer; what has nothing to do with a
    step is an ``amount``, seconds of a save or bytes that are lost in a second.
    """

    place: Literal["data", "backward", "roaming", "garbage", "leak", "save", "stop"]
    rank: int | None
    steps: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True)
class Truth:
    """The verdict that must be found, and no other. An empty phase: any, since nobody knows where a signal hits."""

    alert: str
    rank: str = ""
    phase: str = ""
    #: What may fire beside it for the same rank, and is true as well: a symptom, or the cause.
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Act:
    """One part of the demo.

    Each fault must be found within ``seconds``; without one the act is right when nothing fires for so long.
    """

    name: str
    title: str
    faults: tuple[Fault, ...] = ()
    #: The verdict on each fault, in their order.
    truths: tuple[Truth, ...] = ()
    seconds: float = 60.0


#: The loader's worker reads ahead while a step runs, so it must need longer than a step for anybody to wait.
_SLOW_LOADER_STEPS = 2.0

ACTS = (
    # The job has been silent for eight seconds before.
    Act("healthy", "healthy", seconds=12),
    Act(
        "slow-data",
        "rank 2 slow in data loading",
        (Fault("data", 2, _SLOW_LOADER_STEPS),),
        (Truth("TrainingStraggler", rank="2", phase="data"),),
    ),
    Act(
        "slow-backward",
        "rank 1 slow in backward",
        (Fault("backward", 1, 0.8),),
        (Truth("TrainingStraggler", rank="1", phase="backward"),),
    ),
    Act(
        "input-bound",
        "all ranks input-bound",
        (Fault("data", None, _SLOW_LOADER_STEPS),),
        # Loaders that sleep are at work without computing, as with slow storage.
        (Truth("TrainingInputBound", phase="data", beside=("TrainingInputStorageSlow",)),),
    ),
    Act(
        "imbalance",
        "another rank slow in each step",
        (Fault("roaming", None, 2.5),),
        (Truth("TrainingDataImbalance"),),
        # Each rank must have waited in half of the steps of its quantiles, and a rank that is slow itself does not.
        seconds=90,
    ),
    # Three faults at once that have nothing to do with each other.
    Act(
        "garbage-leak-checkpoint",
        "all ranks collect garbage, rank 1 leaks host memory, and slow storage holds up checkpoints",
        (Fault("garbage", None, 0.1), Fault("leak", 1, amount=LEAK_RATE), Fault("save", 0, amount=2.0)),
        (
            # Each rank collects in steps of its own, and the others wait for it then.
            Truth("TrainingGarbageCollection", beside=("TrainingDataImbalance",)),
            Truth("TrainingMemoryLeak", rank="1"),
            Truth("TrainingCheckpointSlow", phase="checkpoint"),
        ),
        # Of the leak minima of three windows, one after the other, must rise, and that for a while. A collection
        # between them can cost a window.
        seconds=120,
    ),
    Act(
        "frozen",
        "rank 3 frozen (SIGSTOP)",
        (Fault("stop", 3),),
        (Truth("TrainingRankFrozen", rank="3", beside=("TrainingStalled",)),),
    ),
    # The ranks end a second apart.
    Act("end", "the run ends", seconds=15),
)
