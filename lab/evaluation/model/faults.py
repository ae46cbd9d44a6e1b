"""What goes wrong in a simulated job, from when to when. Data alone: blocks.py and what is exposed make it happen."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TypeVar

from laggard.shared.phases import Phase

FOREVER = float("inf")


@dataclass(frozen=True)
class Fault:
    """What goes wrong, from when to when, in seconds."""

    begin: float = 0.0
    end: float = FOREVER

    def at(self, time: float) -> bool:
        """Say whether it is there."""
        return self.begin <= time < self.end

    def times(self, time: float, a_minute: float) -> float:
        """Return how often something has happened by now that this makes happen so many times a minute."""
        return float(floor(max(0.0, a_minute * (min(time, self.end) - self.begin)) / 60))


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
    #: What the exporter says of them by NCCL's RAS service: the end of the series' name, and its value.
    ras: tuple[str, float] | None = None


@dataclass(frozen=True)
class Death(Fault):
    """Processes are killed. The others wait for them."""

    ranks: tuple[int, ...] = ()
    #: Their host is gone, and the exporter on it.
    with_host: bool = False
    #: How they end, as exporters say it: without a word, by an exception with its class, by an exit code, on request.
    by: str = "unknown"
    word: str = ""


@dataclass(frozen=True)
class MetricsLost(Fault):
    """Ranks' own metrics do not arrive."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ExporterLost(Fault):
    """The node exporter of these ranks' hosts does not answer."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Unsteady(Fault):
    """Some steps of ranks, or of all, take longer in one phase: another process, a slow file, a page fault."""

    ranks: tuple[int, ...] | None = None
    phase: Phase = Phase.FORWARD
    #: Share of the steps, by lot on each rank, or the same steps on all; and by how much of the own time.
    chance: float = 0.0
    excess: float = 0.0
    together: bool = False


@dataclass(frozen=True)
class Bursts(Fault):
    """In a share of the steps the transfer takes longer by so much of the own time."""

    chance: float = 0.0
    excess: float = 0.0


@dataclass(frozen=True)
class Collection(Fault):
    """Each rank stops for a garbage collection once in so many steps, for so much of the own time."""

    every: int = 20
    pause: float = 0.0
    #: All at the same step, instead of each at its own.
    together: bool = False


@dataclass(frozen=True)
class Recompile(Fault):
    """Every so many seconds all ranks compile anew, for so long."""

    every: float = 60.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Throttle(Fault):
    """GPUs of ranks run at a share of their clock, for a reason, and compute as much slower."""

    ranks: tuple[int, ...] = ()
    clock: float = 1.0
    reason: str = "hw_thermal"
    #: Share of the time for which the driver says so.
    told: float = 0.9
    celsius: float = 0.0


@dataclass(frozen=True)
class GpuFault(Fault):
    """Something of a rank's GPU is broken; ``kind`` is a row of devices.FAULTS."""

    rank: int = 0
    kind: str = ""
    #: How much of it, where it is a number.
    size: float = 1.0


@dataclass(frozen=True)
class Leak(Fault):
    """Memory of a kind grows, on ranks or on all, by so many bytes a second."""

    kind: str = "host_rss"
    ranks: tuple[int, ...] | None = None
    speed: float = 0.0


@dataclass(frozen=True)
class Memory(Fault):
    """Sets memory of a kind, or adds to a counter of failed allocations so many a minute."""

    kind: str = ""
    value: float = 0.0
    rank: int = 0


@dataclass(frozen=True)
class Spike(Fault):
    """What the run logs is so many times as large: its loss or the norm of its gradients."""

    number: str = "loss"
    factor: float = 1.0


@dataclass(frozen=True)
class NotFinite(Fault):
    """The loss or the norm of the gradients is not finite, so many times a minute."""

    number: str = "loss"
    rate: float = 1.0


@dataclass(frozen=True)
class Dropped(Fault):
    """A rank loses so many measured events for each step."""

    ranks: tuple[int, ...] = ()
    rate: float = 0.0


@dataclass(frozen=True)
class WrongClock(Fault):
    """The clock of these ranks' host differs by so many seconds."""

    ranks: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Idle(Fault):
    """GPUs of ranks, or of all, have nothing to do: the script trains on the processor. Some work may be left."""

    ranks: tuple[int, ...] | None = None
    left: float = 0.0


@dataclass(frozen=True)
class Held(Fault):
    """A GPU that the run does not use, beside that of a rank, has this share of its memory taken, and works as much."""

    rank: int = 0
    share: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True)
class OtherDriver(Fault):
    """The hosts of these ranks have another version of the GPU driver."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class OtherLibrary(Fault):
    """The libraries of the driver were replaced on the hosts of these ranks, and NVML refuses all calls."""

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class MoreSeries(Fault):
    """Something on the way adds labels to the series of rank 0, so that it has so many more."""

    count: int = 0
