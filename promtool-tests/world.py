"""A simulated cluster: what the ranks of training runs and their node exporters would expose at each scrape.

A :class:`World` advances scrape by scrape. Between two advances a scenario changes the ranks: their work, their
state, whether a scrape of them succeeds. Steps are synchronous: all ranks of a run need the time of the slowest one
plus the transfer, and who is faster waits in the communication phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from laggard.shared.metrics import SIGNALS
from laggard.shared.phases import STILL_SECONDS, STOOD_STILL_SECONDS, Condition, Phase, RankState
from notation import STALE, UNIT, Sample

#: Seconds of each phase of a healthy rank's step.
WORK = {"data": 0.01, "h2d": 0.01, "forward": 0.05, "backward": 0.09, "optimizer": 0.01, "other": 0.01}

#: Seconds of a healthy step in which the transfer is exposed.
TRANSFER = 0.02

RUN = "run-a"

#: Phases of a step that are no part of every step.
PAUSES = ("checkpoint", "evaluation")

Labels = tuple[tuple[str, str], ...]

#: Phases that rules ask for by name.
_SELECTED = {("training_phase", phase.label) for phase in (Phase.COMMUNICATION, Phase.CHECKPOINT, Phase.EVALUATION)}


@dataclass
class Progress:
    """How far a stalled rank has come in a process group, by its flight recorder."""

    issued: int
    #: The first collective that is not done, and what the rank calls there.
    pending: int | None = None
    call: str = "all_reduce"
    #: Whether its device has begun; gloo does not say.
    begun: bool | None = None

    def samples(self) -> Iterable[tuple[str, dict[str, str], float]]:
        """Yield name, labels and value of what the exporter shows of it."""
        yield "issued", {}, self.issued
        if self.begun is not None:
            yield "begun", {}, self.begun
        if self.pending is not None:
            yield "pending", {"collective_operation": self.call, "collective_call": self.call}, self.pending


@dataclass
class Rank:
    """One rank. Scenarios set the fields; the world reads them at each scrape."""

    rank: int
    host: str
    run: str = RUN
    peer_group: str = ""
    work: dict[str, float] = field(default_factory=lambda: dict(WORK))
    signals: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SIGNALS, 1))
    state: RankState = RankState.RUNNING
    phase: Phase = Phase.FORWARD
    start: float = 0.0
    #: The process lives. Its own metrics are scraped only then.
    alive: bool = True
    stopped: bool = False
    #: By what and with what its process ends where it does not end cleanly, and when the newest one did.
    ending: tuple[str, str] = ("request", "SIGTERM")
    failed_at: float | None = None
    #: When the last step of the process ended that ended last.
    failed_since_step: float = 0.0
    #: A scrape of the rank's own metrics, or of its exporter, fails: its series are marked stale.
    lost: bool = False
    exporter_lost: bool = False
    #: Seconds between scrapes of its own metrics, where they are rarer than those of others.
    every: int = 0
    #: And its exporter.
    exporter_every: int = 0
    #: No target at all: nothing was ever scraped there.
    has_metrics: bool = True
    has_exporter: bool = True
    #: How long its own phases take is not dropped on the way.
    has_phases: bool = True
    #: The process is gone, but a push path still shows its last samples, which no scrape marked stale.
    lingers: bool = False
    #: Seconds by which its host's clock differs.
    clock: float = 0.0
    #: What the rank measures, where that is not what follows from its peers.
    measured_wait: float | None = None
    floor: float | None = None
    #: Seconds that one of its data workers needs for a batch, and how many of them there are.
    fetch: float | None = None
    workers: int = 2
    world_size: int | None = None
    pid: int = 1
    workload: str = ""
    hw_id: str = ""
    #: Share of its steps that goes into the histograms, as where steps are very short.
    recorded: float = 1.0
    #: What else the rank exposes: gauges with their value, counters with their growth in a second.
    gauges: dict[str, float] = field(default_factory=dict[str, float])
    counters: dict[str, float] = field(default_factory=dict[str, float])
    #: Exporters beside the host's own that read the same state file.
    more_exporters: tuple[str, ...] = ()
    #: Process group -> started collectives and whether the rank is inside one.
    groups: dict[str, tuple[int, bool]] = field(default_factory=lambda: {"world": (0, False)})
    #: Process group -> torch's number of the collective that was started last.
    operations: dict[str, int] = field(default_factory=dict[str, int])
    #: What the flight recorder says, by process group; None without a dump of it.
    recorder: dict[str, Progress] | None = None
    #: It says that a send or a receive is not done.
    transfer: bool = False
    #: Ranks with which that is.
    peers: tuple[int, ...] = ()
    #: What NCCL's RAS service says of it: by how many collectives it is behind, and whether it does not answer.
    ras_behind: int = 0
    ras_missing: int = 0
    # What the rank has counted so far, in units.
    steps: int = 0
    seconds: dict[str, int] = field(default_factory=dict[str, int])
    fetched: int = 0
    counted: dict[str, float] = field(default_factory=dict[str, float])
    last_step: float = 0.0
    last_edge: float = 0.0
    #: When its exporter last saw it stand still.
    stood_still: float = float("-inf")

    @property
    def own(self) -> float:
        """Seconds of a step in which the rank works itself."""
        return sum(seconds for phase, seconds in self.work.items() if phase not in PAUSES)

    @property
    def shown_seconds(self) -> list[tuple[str, int]]:
        """The phases that arrive, and what the rank has counted of each."""
        return [each for each in self.seconds.items() if self.has_phases or each[0] not in WORK]

    @property
    def pause(self) -> float:
        """Seconds of a step in which it saves or evaluates, on average."""
        return sum(seconds for phase, seconds in self.work.items() if phase in PAUSES)

    def enters(self, phase: Phase, **groups: tuple[int, bool]) -> None:
        """Put the rank into a phase, and some of its process groups into a state."""
        self.phase = phase
        self.groups.update(groups)

    def recorded_facts(self) -> Iterable[tuple[str, dict[str, str], float]]:
        """Yield name, labels and value of what the exporter shows of its dump."""
        if self.recorder is not None:
            yield "transfer", {}, self.transfer
            for peer in self.peers:
                yield "peer", {"peer_rank": str(peer)}, 1
            for group, progress in self.recorder.items():
                for name, labels, value in progress.samples():
                    yield name, {"process_group": group, **labels}, value

    def condition(self, age: float) -> Condition:
        """Return whether it stands still, with no sign of progress for so long, and why."""
        if self.state is RankState.FINISHED:
            return Condition.ENDED
        if not self.alive:
            return Condition.DEAD
        if self.stopped:
            return Condition.STOPPED
        return Condition.QUIET if age > STILL_SECONDS else Condition.GOES_ON

    def standstill(self, age: float) -> Iterable[tuple[str, dict[str, str], float]]:
        """Yield name, labels and value of what the exporter shows of where it stands."""
        yield "condition", {}, self.condition(age)
        yield "standstill_seconds", {}, age
        if self.alive:
            yield "stopped", {}, self.stopped
        for phase in Phase:
            yield "phase", {"host_name": self.host, "phase": phase.label}, self.phase is phase
        for group, (sequence, inside) in self.groups.items():
            yield "collective_sequence", {"process_group": group}, sequence
            yield "in_collective", {"process_group": group}, inside
        for group, operation in self.operations.items():
            yield "collective_operation", {"process_group": group}, operation
        if self.ras_behind:
            yield "ras_behind", {"communicator": "0xf00d"}, self.ras_behind
        if self.ras_missing:
            yield "ras_missing", {}, self.ras_missing

    def kill(self) -> None:
        """End by SIGKILL."""
        self.alive, self.ending = False, ("unknown", "SIGKILL")

    def finish(self) -> None:
        """End cleanly: the state file says so, and the metrics endpoint is gone before the next scrape."""
        self.state = RankState.FINISHED
        self.alive = False


@dataclass
class Device:
    """One GPU. Its gauges and counters are named in full, with labels beside ``uuid`` in braces."""

    uuid: str
    run: str = ""
    rank: int | None = None
    gauges: dict[str, float] = field(default_factory=dict[str, float])
    #: Growth in a second.
    counters: dict[str, float] = field(default_factory=dict[str, float])
    #: A scrape of its exporter fails.
    lost: bool = False
    #: The exporter says which rank uses it; otherwise only the rank does.
    has_workload: bool = True
    #: The label that holds the uuid, and labels that all of its series have besides.
    label: str = "uuid"
    more: str = ""
    _counted: dict[str, float] = field(default_factory=dict[str, float])
    _then: float = 0.0

    def metrics(self, now: float) -> Iterable[tuple[tuple[str, Labels], float]]:
        """Yield what the exporter shows of it."""
        for series, growth in self.counters.items():
            self._counted[series] = self._counted.get(series, 0) + growth * (now - self._then)
        self._then = now
        counted = {series: self._counted.get(series, 0) for series in self.counters}
        workload: dict[str, float] = {}
        if self.run and self.has_workload:
            workload[f"gpu_workload_info{{training_run={self.run},training_rank={self.rank}}}"] = 1
        for series, value in {**self.gauges, **counted, **workload}.items():
            name, _, labels = series.removesuffix("}").partition("{")
            pairs = (tuple(pair.split("=")) for pair in f"{labels},{self.more}".split(",") if pair)
            yield (
                (name, ((self.label, self.uuid), ("instance", "exporter:9495"), *((key, each) for key, each in pairs))),
                value,
            )


class World:
    """All series of a cluster, sample by sample."""

    def __init__(self, ranks: Iterable[Rank], tick: int = 15) -> None:
        self.ranks = list(ranks)
        self.tick = tick
        #: GPUs, as the exporter of their host shows them.
        self.devices: list[Device] = []
        self.now = 0
        #: Seconds of a step beside own work and waiting, by run: the transfer.
        self.transfer = TRANSFER
        #: Runs whose steps go on; the others stand where they are.
        self.training = {rank.run for rank in self.ranks}
        self._ticks = 0
        self._series: dict[tuple[str, Labels], list[Sample]] = {}
        #: Own time of the slowest rank of each run, and how many ranks it has.
        self._slowest: dict[str, float] = {}
        self._sizes: dict[str, int] = {}

    def __getitem__(self, rank: int) -> Rank:
        """Return the rank of that number in the first run."""
        return next(each for each in self.ranks if each.rank == rank and each.run == self.ranks[0].run)

    def series(self) -> dict[tuple[str, Labels], list[Sample]]:
        """Return name and labels of each series with its samples, one for each scrape so far.

        Phases that a rank never enters are left out, but for those that rules select: the files stay readable.
        """
        return {
            key: samples + [None] * (self._ticks - len(samples))
            for key, samples in self._series.items()
            if key[0] != "training_process_phase" or UNIT in samples or _SELECTED & set(key[1])
        }

    def advance(self, seconds: float) -> None:
        """Scrape the cluster for as long, after each interval of work."""
        for _ in range(round(seconds / self.tick)):
            self._scrape()
            self.now += self.tick
            for ranks in self._by_run().values():
                self._work(ranks)

    def _by_run(self) -> dict[str, list[Rank]]:
        found: dict[str, list[Rank]] = {}
        for rank in self.ranks:
            found.setdefault(rank.run, []).append(rank)
        return found

    def _work(self, ranks: list[Rank]) -> None:
        working = [rank for rank in ranks if rank.alive and rank.state is RankState.RUNNING]
        if ranks[0].run not in self.training or not working:
            return
        step = max(rank.own + rank.pause for rank in working) + self.transfer
        steps = round(self.tick / step * UNIT)
        for rank in working:
            rank.steps += steps
            wait = step - rank.own - rank.pause if rank.measured_wait is None else rank.measured_wait
            for phase, seconds in {**rank.work, "communication": wait}.items():
                rank.seconds[phase] = rank.seconds.get(phase, 0) + round(seconds * steps)
            rank.fetched += round((rank.fetch or 0) * steps)
            for series, growth in rank.counters.items():
                rank.counted[series] = rank.counted.get(series, 0) + growth * self.tick
            rank.last_step = rank.last_edge = self.now
            rank.groups = dict.fromkeys(rank.groups, (rank.steps // UNIT, False))
            rank.recorder = None

    def _scrape(self) -> None:
        for run, ranks in self._by_run().items():
            self._slowest[run] = max(rank.own for rank in ranks)
            self._sizes[run] = len({rank.rank for rank in ranks})
        #: What is scraped more rarely, which is no reason to mark it as gone.
        spared: set[tuple[str, Labels]] = set()
        for rank in self.ranks:
            answers = rank.has_metrics and not rank.lost and (rank.alive or rank.lingers)
            samples = dict(self._own_metrics(rank)) if answers else {}
            if rank.every and self.now % rank.every:
                spared |= samples.keys()
                samples = {}
            if rank.has_exporter and not rank.exporter_lost:
                for exporter in (rank.host, *rank.more_exporters):
                    shown = dict(self._process_metrics(rank, exporter))
                    if rank.exporter_every and self.now % rank.exporter_every:
                        spared |= shown.keys()
                    else:
                        samples.update(shown)
            self._append(samples)
        for device in self.devices:
            self._append(dict(device.metrics(self.now)) if not device.lost else {})
        for key, line in self._series.items():
            if len(line) == self._ticks and line[-1] not in (None, STALE) and key not in spared:
                line.append(STALE)
        self._ticks += 1

    def _append(self, samples: Mapping[tuple[str, Labels], float]) -> None:
        for key, value in samples.items():
            line = self._series.get(key)
            if line is None:
                line = self._series[key] = []
            if len(line) < self._ticks:
                line.extend([None] * (self._ticks - len(line)))
            line.append(round(value * UNIT))

    def _own_metrics(self, rank: Rank) -> Iterable[tuple[tuple[str, Labels], float]]:
        """Yield what the rank's own metrics endpoint exposes."""

        def sample(name: str, value: float, /, **labels: str) -> tuple[tuple[str, Labels], float]:
            return _key(name, rank, f"{rank.host}:{9464 + rank.rank}", peer_group=rank.peer_group, **labels), value

        own = sum(seconds for phase, seconds in rank.seconds.items() if phase not in ("communication", *PAUSES))
        steps = rank.steps / UNIT
        yield sample("training_steps_total", steps)
        for metric, seconds in (("step", sum(rank.seconds.values())), ("step_own", own)):
            yield sample(f"training_{metric}_duration_seconds_sum", rank.recorded * seconds / UNIT)
            yield sample(f"training_{metric}_duration_seconds_count", rank.recorded * steps)
        for phase, seconds in rank.shown_seconds:
            yield sample("training_phase_duration_seconds_sum", rank.recorded * seconds / UNIT, phase=phase)
        if rank.recorded < 1:
            left_out = (1 - rank.recorded) * sum(rank.seconds.values()) / UNIT
            yield sample("training_steps_excluded_duration_seconds_total", left_out, reason="sampling")
        if rank.fetch is not None:
            yield sample("training_dataloader_workers", rank.workers)
            yield sample("training_dataloader_fetch_duration_seconds_sum", rank.fetched / UNIT)
            yield sample("training_dataloader_fetch_duration_seconds_count", steps)
        floor = self._slowest[rank.run] + self.transfer - rank.own if rank.floor is None else rank.floor
        yield sample("training_communication_floor_seconds", floor)
        if rank.last_step:
            yield sample("training_last_step_timestamp_seconds", rank.last_step + rank.clock)
        yield sample("training_ranks_expected", rank.world_size or self._sizes[rank.run])
        for state in (RankState.STARTING, RankState.RUNNING, RankState.FINISHED):
            yield sample("training_rank_state", rank.state is state, state=state.label)
        for signal, available in rank.signals.items():
            yield sample("training_signal_available", available, signal=signal)
        key = _key(
            "training_rank_start_timestamp_seconds", rank, f"{rank.host}:{9464 + rank.rank}",
            peer_group=rank.peer_group, host_name=rank.host, workload=rank.workload, hw_id=rank.hw_id,
        )  # fmt: skip
        yield key, rank.start
        counted = {series: rank.counted.get(series, 0) for series in rank.counters}
        for series, value in {**rank.gauges, **counted}.items():
            # Name and labels in the notation of Prometheus, less what every series of a rank has.
            name, _, labels = series.removesuffix("}").partition("{")
            yield sample(name, value, **dict(pair.split("=") for pair in labels.split(",") if pair))

    def _process_metrics(self, rank: Rank, exporter: str) -> Iterable[tuple[tuple[str, Labels], float]]:
        """Yield what a node exporter says of the rank's state file."""

        def sample(name: str, value: float, **labels: str) -> tuple[tuple[str, Labels], float]:
            return _key(f"training_process_{name}", rank, f"{exporter}:9495", **labels), value

        yield sample("up", rank.alive)
        for state in RankState:
            yield sample("state", rank.state is state, state=state.label)
        yield sample("steps_total", rank.steps / UNIT)
        age = max(self.now - rank.last_edge, 0.1)
        yield sample("phase_age_seconds", age)
        if rank.last_step:
            yield sample("last_step_age_seconds", max(self.now - rank.last_step, 0.1))
        if rank.condition(age) is not Condition.GOES_ON:
            rank.stood_still = self.now
        if self.now - rank.stood_still <= STOOD_STILL_SECONDS:
            yield from (sample(name, value, **labels) for name, labels, value in rank.standstill(age))
        yield sample("world_size", rank.world_size or self._sizes[rank.run])
        yield sample("start_timestamp_seconds", rank.start)
        info = _key("training_process_info", rank, f"{exporter}:9495", host_name=rank.host, process_pid=str(rank.pid))
        yield info, 1
        if not rank.alive and rank.state is not RankState.FINISHED and (rank.failed_at or -1) < rank.start:
            rank.failed_at = self.now - 1
        if rank.failed_at is not None:
            by, with_what = rank.ending
            failure = _key(
                "training_process_failure_timestamp_seconds", rank, f"{exporter}:9495",
                host_name=rank.host, phase=rank.phase.label, ended_by=by, ended_with=with_what,
            )  # fmt: skip
            yield failure, rank.failed_at
            if not rank.alive:
                rank.failed_since_step = rank.last_step
            yield sample("failure_last_step_age_seconds", max(rank.failed_at - rank.failed_since_step, 0))
        if rank.alive:
            yield from (sample(f"hang_{name}", value, **labels) for name, labels, value in rank.recorded_facts())


def _key(name: str, rank: Rank, instance: str, **labels: str) -> tuple[str, Labels]:
    """Return a series' name and labels, less empty ones; a label without a prefix of its own is ours."""
    return name, _labels(rank.run, rank.rank, instance, tuple(labels.items()))


@cache
def _labels(run: str, rank: int, instance: str, labels: Labels) -> Labels:
    everything = {"training_run": run, "training_rank": str(rank), "instance": instance}
    for label, value in labels:
        if value:
            everything[label if label in ("host_name", "process_pid", "hw_id") else f"training_{label}"] = value
    return tuple(everything.items())
