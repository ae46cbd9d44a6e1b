"""What a simulated job is like, and what goes wrong in it. Data alone: steps.py makes it go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from laggard.conventions import Phase

#: Phases of a rank's own work, in the order of a step; the exposed wait for peers stands between backward and
#: optimizer.
OWN = (Phase.DATA, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
#: Those before and those after the wait.
HEAD, TAIL = slice(0, 4), slice(4, 6)

FOREVER = float("inf")


@dataclass(frozen=True)
class Fault:
    """What goes wrong, from when to when, in seconds."""

    begin: float = 0.0
    end: float = FOREVER

    def at(self, time: float) -> bool:
        """Say whether it is there."""
        return self.begin <= time < self.end


AnyFault = TypeVar("AnyFault", bound=Fault)


@dataclass(frozen=True)
class Slow(Fault):
    """Ranks need ``factor`` times their own time; the excess is in one phase, or in all alike."""

    ranks: tuple[int, ...] = ()
    phase: Phase | None = None
    factor: float = 1.0
    #: Seconds over which the excess grows to its size.
    ramp: float = 0.0
    #: Share of the time in which it is there, and how long one round takes.
    duty: float = 1.0
    round: float = 60.0

    def strength(self, time: float) -> float:
        """Return by how much of its own time a rank is late."""
        if not self.at(time) or (time - self.begin) % self.round >= self.duty * self.round:
            return 0.0
        grown = min(1.0, (time - self.begin) / self.ramp) if self.ramp else 1.0
        return (self.factor - 1) * grown


@dataclass(frozen=True)
class Roaming(Fault):
    """In each step another rank, drawn by lot, needs ``factor`` times its own time."""

    factor: float = 1.0


@dataclass(frozen=True)
class Transfer(Fault):
    """The exposed transfer takes ``share`` of the step that it makes."""

    share: float = 0.0


@dataclass(frozen=True)
class Supply(Fault):
    """Workers of some ranks, or of all, deliver a batch only every ``factor`` steps of healthy length."""

    ranks: tuple[int, ...] | None = None
    factor: float = 1.0


@dataclass(frozen=True)
class Hang(Fault):
    """Ranks stay in a phase; with ``Phase.COMMUNICATION`` the transfer itself does not end. May end again."""

    ranks: tuple[int, ...] = ()
    phase: Phase = Phase.FORWARD
    #: The kernel holds the processes.
    stopped: bool = False


@dataclass(frozen=True)
class Death(Fault):
    """Processes are killed. The others wait for them."""

    ranks: tuple[int, ...] = ()
    #: Their host is gone, and the exporter on it.
    with_host: bool = False


@dataclass(frozen=True)
class MetricsLost(Fault):
    """Ranks' own metrics do not arrive."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ExporterLost(Fault):
    """The node exporter of these ranks' hosts does not answer."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pause:
    """What some steps have beside work: a checkpoint or an evaluation, every so many seconds."""

    phase: Phase
    every: float
    seconds: float
    #: One rank alone does it, and the others wait in their next collective.
    alone: bool = False


@dataclass(frozen=True)
class Job:
    """One run. Seconds, unless said otherwise."""

    run: str
    ranks: int
    #: Own time of a healthy rank's step, and how it varies: from step to step, between ranks, with the batch that all
    #: ranks share the length of, and slowly over minutes.
    own: float
    cv: float = 0.05
    spread: float = 0.01
    common: float = 0.0
    wander: float = 0.0
    #: Shares of the phases of OWN.
    mix: tuple[float, ...] = (0.03, 0.03, 0.3, 0.54, 0.06, 0.04)
    #: Share of a healthy step that is exposed transfer.
    transfer: float = 0.05
    #: Workers and prefetched batches of a rank's loader, and a batch's time as a share of what the workers could need.
    loader: tuple[int, int, float] | None = None
    stages: tuple[float, ...] = (1.0,)
    pauses: tuple[Pause, ...] = ()
    faults: tuple[Fault, ...] = ()
    start: float = 0.0
    startup: float = 20.0
    #: Seconds of the first step beside its work, and how many steps stay out of the means.
    compile: float = 5.0
    warmup: int = 3
    #: Training ends here, if it does, and each rank's process at most so much later.
    end: float = FOREVER
    apart: float = 0.0
    #: A restart of all ranks: they die, start again so much later, and perhaps fewer, or on other hosts.
    restart: float = FOREVER
    down: float = 30.0
    ranks_after: int | None = None
    moves: bool = False
    exporter: bool = True
    push: bool = False
    measures_communication: bool = True
    lost_scrapes: float = 0.002
    per_host: int = 8
    seed: int = 0
    horizon: float = 1500.0

    def of(self, kind: type[AnyFault]) -> tuple[AnyFault, ...]:
        """Return the faults of one kind."""
        return tuple(fault for fault in self.faults if isinstance(fault, kind))


@dataclass(frozen=True)
class Case:
    """A job and what is known of it."""

    scenario: str
    job: Job
    #: The alerts that must fire: name, ranks (none: of the run), phase, and from when to when.
    expected: tuple[tuple[str, tuple[int, ...], str, float, float], ...] = ()
    allowed: tuple[str, ...] = ()
    #: Alerts for which the case is a near miss.
    near: tuple[str, ...] = ()
    facts: dict[str, float] = field(default_factory=dict[str, float])
