"""Live jobs and their faults. Data, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

#: Names the file that says which rank is slow, where, and by how many seconds a batch.
CONTROL = "FIELD_CONTROL"
#: Phase in which a fault of each place must be found.
PHASES = {"data": "data", "forward": "forward", "backward": "backward", "host": "other"}
#: Seconds by which a slow rank's batch is longer than that of its peers, which is 50 ms.
EXTRA = 0.030


@dataclass(frozen=True)
class Job:
    """A loop, its ranks, and where they are made slow."""

    loop: str
    ranks: int
    culprits: tuple[int, int] = (1, 0)
    """Ranks that are made slow in turn, so that what is left of a fault in the means is another rank's."""
    places: tuple[str, ...] = ("data", "forward", "backward", "host")
    package: str = "torch"
    #: Of the extra, where a batch is longer than usual or a step has more of a place than one.
    extra: float = EXTRA


JOBS = (
    Job("hf_trainer", 2, package="transformers"),
    Job("lightning", 2, package="lightning"),
    Job("accelerate", 2, package="accelerate"),
    Job("ppo", 2, places=("host",), extra=0.019),
    Job("semi_supervised", 2),
    # On its last stage, which has no loader.
    Job("pipeline", 4, (3, 2), places=("forward", "backward", "host")),
)
