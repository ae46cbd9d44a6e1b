"""What a simulated job is like. Data alone: blocks.py and steps.py make it go."""

from __future__ import annotations

from dataclasses import dataclass, field

from lab.evaluation.model.faults import FOREVER, AnyFault, Fault
from lab.evaluation.model.schedule import Pipeline
from laggard.shared.phases import Phase

#: Phases of a rank's own work, in the order of a step; the exposed wait for peers stands between backward and
#: optimizer.
OWN = (Phase.DATA, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
#: Those before and those after the wait.
HEAD, TAIL = slice(0, 4), slice(4, 6)

GIB = 2.0**30


@dataclass(frozen=True)
class Pause:
    """What some steps have beside work: a checkpoint or an evaluation, every so many seconds."""

    phase: Phase
    every: float
    seconds: float
    #: One rank alone does it, and the others wait in their next collective.
    alone: bool = False
    #: None begins after this, nor within a gap.
    end: float = FOREVER
    gap: tuple[float, float] = (FOREVER, FOREVER)


@dataclass(frozen=True)
class Loader:
    """How the batches of each rank are made."""

    workers: int
    prefetch: int = 2
    #: A batch's time as a share of what the workers could need, and the share of it in which a worker computes.
    share: float = 0.5
    computing: float = 0.6


@dataclass(frozen=True)
class Gpus:
    """What the GPUs of all ranks are like while they compute; one a rank, seen by the node exporter."""

    name: str = "NVIDIA H100 80GB HBM3"
    #: Shares of the multiprocessors at work, of the tensor cores, and of the time at the power limit.
    sm: float = 0.7
    tensor: float = 0.35
    capped: float = 0.2
    #: Clock at work over the highest.
    clock: float = 0.95


@dataclass(frozen=True)
class Usage:
    """Memory of each rank, in bytes."""

    device: float = 80 * GIB
    host: float = 512 * GIB
    allocated: float = 32 * GIB
    reserved: float = 36 * GIB
    peak: float = 48 * GIB
    rss: float = 12 * GIB
    workers: float = 8 * GIB
    #: What a garbage collection brings back each time, every so many seconds.
    swing: float = 0.0
    period: float = 300.0
    #: What a cache takes in the end, half of it within so many seconds.
    cache: float = 0.0
    half: float = 600.0


@dataclass(frozen=True)
class Numbers:
    """What the run logs: a loss that falls from the first value to the second, with noise, and gradient norms."""

    first: float = 8.0
    last: float = 2.0
    half: float = 1200.0
    noise: float = 0.03
    norm: float = 1.0
    #: A gradient scaler skips steps whose gradients are not finite.
    scaler: bool = False


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
    #: And how the transfer varies from step to step, as a share of its usual time.
    transfer_cv: float = 0.1
    loader: Loader | None = None
    #: Own time of each stage as a multiple of ``own``; consecutive ranks are replicas of a stage.
    stages: tuple[float, ...] = (1.0,)
    #: How batches go through the stages; without one, stages differ and know of no bubble.
    pipeline: Pipeline | None = None
    pauses: tuple[Pause, ...] = ()
    #: Every so many seconds an epoch begins, whose first batch takes so many.
    epochs: tuple[float, float] | None = None
    gpus: Gpus | None = None
    usage: Usage | None = None
    numbers: Numbers | None = None
    faults: tuple[Fault, ...] = ()
    start: float = 0.0
    startup: float = 20.0
    #: Seconds of the first step beside its work, and how many steps stay out of the means.
    compile: float = 5.0
    warmup: int = 3
    #: Training ends here, if it does, and each rank's process at most so much later.
    end: float = FOREVER
    apart: float = 0.0
    #: Restarts of all ranks: they die, start again so much later, and perhaps fewer, or on other hosts.
    restarts: tuple[float, ...] = ()
    down: float = 30.0
    ranks_after: int | None = None
    moves: bool = False
    exporter: bool = True
    push: bool = False
    measures_communication: bool = True
    lost_scrapes: float = 0.002
    #: Ranks whose own metrics are scraped in one of several intervals, and of how many.
    rare: tuple[int, ...] = ()
    rare_every: int = 4
    per_host: int = 8
    #: Before the names of its hosts.
    cluster: str = ""
    workload: str = ""
    #: Runs of the same workload before this one.
    earlier: tuple[Job, ...] = ()
    seed: int = 0
    horizon: float = 1500.0

    def of(self, kind: type[AnyFault]) -> tuple[AnyFault, ...]:
        """Return the faults of one kind."""
        return tuple(fault for fault in self.faults if isinstance(fault, kind))

    def host(self, rank: int, moved: int = 0) -> str:
        """Return the name of the host on which a rank runs."""
        return f"{self.cluster}{self.run}-node-{rank // self.per_host + 1000 * moved}"


@dataclass(frozen=True)
class Expectation:
    """An alert that must fire: for each of some ranks, hosts or peer groups, or for the run where there are none."""

    alert: str
    culprits: tuple[int | str, ...] = ()
    #: Phase, kind of memory or reason, where the alert tells one.
    detail: str = ""
    begin: float = 0.0
    end: float = FOREVER


@dataclass(frozen=True)
class Case:
    """A job and what is known of it."""

    job: Job
    expected: tuple[Expectation, ...] = ()
    #: Alerts that may fire, since it is near their limit, or hard to say.
    allowed: tuple[str, ...] = ()
    #: Alerts for which the case is a near miss.
    near: tuple[str, ...] = ()
    facts: dict[str, float] = field(default_factory=dict[str, float])
    scenario: str = ""
