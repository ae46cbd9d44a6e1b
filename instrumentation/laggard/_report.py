"""From finished steps to OpenTelemetry: instruments, and the numbers that need a memory of recent steps.

Called by the drain thread only. Uses nothing but the public OpenTelemetry API, so the user's own provider, exporter
and views apply. One meter makes every instrument of a name: two of them would mix up labels in some readers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from opentelemetry.metrics import Counter, Histogram
from opentelemetry.metrics import _Gauge as Gauge

from laggard import _providers, _runtime
from laggard._clocks import unix_ahead_ns
from laggard._identity import Identity
from laggard._instruments import counter_of, gauge_of, histogram_of
from laggard._steps import Step
from laggard.shared import metrics
from laggard.shared.attributes import Attribute
from laggard.shared.phases import QUANTILE_PHASES, Phase, RankState
from laggard.shared.statefile import Facts
from laggard.version import __version__

_NANOSECOND = 1e-9
#: A step's number times this, in 32 bits, is far from that of its neighbours.
_SCATTER = 0x9E3779B1


class Report:
    """Reports one rank. Made when run and rank are known; every data point carries them."""

    def __init__(self, identity: Identity, facts: Facts, layout: str = "") -> None:
        self._identity = identity
        self._base = identity.attributes()
        self._meters = _providers.meters(metrics.METER_NAME, __version__)
        self._step = histogram_of(self._meters, metrics.STEP_DURATION)
        self._own = histogram_of(self._meters, metrics.STEP_OWN_DURATION)
        self._phase = histogram_of(self._meters, metrics.PHASE_DURATION)
        self._collective = histogram_of(self._meters, metrics.COLLECTIVE_DURATION)
        self._steps = counter_of(self._meters, metrics.STEPS)
        self._skipped = counter_of(self._meters, metrics.STEPS_SKIPPED)
        self._excluded = counter_of(self._meters, metrics.STEPS_EXCLUDED)
        self._excluded_duration = counter_of(self._meters, metrics.STEPS_EXCLUDED_DURATION)
        self._collective_io = counter_of(self._meters, metrics.COLLECTIVE_IO)
        self._self_time = counter_of(self._meters, metrics.SELF_TIME)
        self._dropped = counter_of(self._meters, metrics.DROPPED)
        self._quantile = gauge_of(self._meters, metrics.PHASE_QUANTILE)
        self._floor = gauge_of(self._meters, metrics.COMMUNICATION_FLOOR)
        self._last_step = gauge_of(self._meters, metrics.LAST_STEP_TIMESTAMP)
        self._state = gauge_of(self._meters, metrics.RANK_STATE)
        self._signal = gauge_of(self._meters, metrics.SIGNAL_AVAILABLE)
        self._instruments: dict[str, Counter | Gauge | Histogram] = {}
        self._phase_attributes = [self._with(Attribute.PHASE, phase.label) for phase in Phase]
        self._used_phases: list[Phase] = []
        self._recent: deque[tuple[int, ...]] = deque(maxlen=metrics.RECENT_STEPS)
        #: Most bytes that were reported, by kind of memory.
        self.memory_peak: dict[str, int] = {}
        self._start(facts, layout)

    def _start(self, facts: Facts, layout: str) -> None:
        # A counter first seen above zero hides its first increments from increase(); so all begin at 0.
        for counter in (self._steps, self._skipped, self._self_time):
            counter.add(0, self._base)
        for reason in metrics.EXCLUSION_REASONS:
            self._excluded.add(0, self._with(Attribute.REASON, reason))
            self._excluded_duration.add(0, self._with(Attribute.REASON, reason))
        for reason in metrics.DROP_REASONS:
            self._dropped.add(0, self._with(Attribute.REASON, reason))
        gauge_of(self._meters, metrics.RANKS_EXPECTED).set(self._identity.world_size, self._base)
        gauge_of(self._meters, metrics.RESTARTS).set(self._identity.restarts, self._base)
        start = {
            Attribute.HOST_NAME: facts.host,
            Attribute.PROCESS_PID: str(facts.pid),
            Attribute.LOCAL_RANK: str(facts.local_rank),
            Attribute.WORKLOAD: facts.workload,
            Attribute.HARDWARE_ID: facts.hardware_id,
        }
        known = {name: value for name, value in start.items() if value}
        gauge_of(self._meters, metrics.RANK_START_TIMESTAMP).set(
            facts.start_unix_ns * _NANOSECOND, {**self._base, **known}
        )
        info = _runtime.facts(facts.workload, layout)
        gauge_of(self._meters, metrics.RUN_INFO).set(1, {**self._base, **info})

    @property
    def identity(self) -> Identity:
        """Who is reported."""
        return self._identity

    def steps(self, steps: Sequence[Step], one_in: int = 1) -> None:
        """Report finished steps; of those that could go into the histograms, one in ``one_in`` does."""
        self._steps.add(len(steps), self._base)
        for wait in [step.first_batch for step in steps if step.first_batch]:
            self.measure(metrics.DATALOADER_FIRST_BATCH_DURATION, wait * _NANOSECOND)
        skipped = sum([step.skipped for step in steps])
        if skipped:
            self._skipped.add(skipped, self._base)
        measured = [step for step in steps if not step.excluded]
        self._recent.extend([step.phases for step in measured])
        left_out: dict[str, list[int]] = {}
        if len(measured) < len(steps):
            for step in steps:
                if step.excluded:
                    left_out.setdefault(step.excluded, []).append(step.duration)
        if one_in > 1:
            chosen = [step for step in measured if stands_for_others(step.number, one_in)]
            if len(chosen) < len(measured):
                numbers = {step.number for step in chosen}
                left_out[metrics.SAMPLING] = [step.duration for step in measured if step.number not in numbers]
            measured = chosen
        for step in measured:
            self._record(step)
        for reason, durations in left_out.items():
            attributes = self._with(Attribute.REASON, reason)
            self._excluded.add(len(durations), attributes)
            self._excluded_duration.add(sum(durations) * _NANOSECOND, attributes)

    def _record(self, step: Step) -> None:
        self._step.record(step.duration * _NANOSECOND, self._base)
        self._own.record(step.own * _NANOSECOND, self._base)
        for phase, duration in enumerate(step.phases):
            if phase not in self._used_phases:
                if not duration:
                    continue
                self._used_phases.append(Phase(phase))
            # Zero is recorded too once a phase is in use, so that the phases' sums keep adding up to the steps'.
            self._phase.record(duration * _NANOSECOND, self._phase_attributes[phase])

    def newest(self, step: Step) -> None:
        """Report when the newest step ended."""
        self._last_step.set((step.ended + unix_ahead_ns()) * _NANOSECOND, self._base)

    def recent(self) -> None:
        """Report what the last steps have in common: quantiles and the communication floor."""
        if not self._recent:
            return
        for phase in QUANTILE_PHASES:
            if phase not in self._used_phases:
                continue
            values = sorted(phases[phase] for phases in self._recent)
            for label, quantile in metrics.QUANTILES.items():
                if len(values) < metrics.QUANTILE_STEPS[label]:
                    continue
                attributes = {**self._phase_attributes[phase], Attribute.QUANTILE: label}
                self._quantile.set(values[ceil(quantile * len(values)) - 1] * _NANOSECOND, attributes)
        if Phase.COMMUNICATION in self._used_phases:
            floor = min(phases[Phase.COMMUNICATION] for phases in self._recent)
            self._floor.set(floor * _NANOSECOND, self._base)

    def collective(self, operation: str, duration_ns: int) -> None:
        """Report that the training thread was blocked by one collective."""
        self._collective.record(duration_ns * _NANOSECOND, self._with(Attribute.COLLECTIVE_OPERATION, operation))

    def collective_io(self, operation: str, size: int) -> None:
        """Report bytes handed to collectives since the last report."""
        self._collective_io.add(size, self._with(Attribute.COLLECTIVE_OPERATION, operation))

    def measure(self, metric: metrics.Metric, value: float, *attributes: str) -> None:
        """Add to a counter, set a gauge or record into a histogram.

        ``attributes`` are the values of the metric's own attributes, in its order. A hook reports what only it knows
        in this way; the instrument is made at the first use, so what a process does not measure stays absent.
        """
        if metric is metrics.MEMORY_USAGE:
            self.memory_peak[attributes[0]] = max(int(value), self.memory_peak.get(attributes[0], 0))
        labels = {**self._base, **dict(zip(metric.attributes, attributes, strict=True))}
        instrument = self._instruments.get(metric.name)
        if instrument is None:
            make = {"counter": counter_of, "gauge": gauge_of, "histogram": histogram_of}[metric.kind]
            instrument = self._instruments[metric.name] = make(self._meters, metric)
        if isinstance(instrument, Counter):
            instrument.add(value, labels)
        elif isinstance(instrument, Histogram):
            instrument.record(value, labels)
        else:
            instrument.set(value, labels)

    def state(self, state: RankState) -> None:
        """Report the state of the rank."""
        for member in RankState:
            self._state.set(int(member is state), self._with(Attribute.STATE, member.label))

    def signals(self, available: Mapping[str, bool]) -> None:
        """Report which signals this process can measure."""
        for signal, yes in available.items():
            self._signal.set(int(yes), self._with(Attribute.SIGNAL, signal))

    def telemetry(self, self_time_ns: int, dropped: Mapping[str, int]) -> None:
        """Report what laggard itself took and lost since the last report."""
        if self_time_ns:
            self._self_time.add(self_time_ns * _NANOSECOND, self._base)
        for reason, count in dropped.items():
            self._dropped.add(count, self._with(Attribute.REASON, reason))

    def _with(self, name: str, value: str) -> dict[str, str]:
        return {**self._base, name: value}


def stands_for_others(number: int, one_in: int) -> bool:
    """Return whether a number is one of those that stand for ``one_in`` each.

    They are scattered evenly, as every tenth step could be the one that writes a log, and are the same on all ranks. A
    greater ``one_in`` chooses some of what a smaller one chooses.
    """
    return number * _SCATTER % 2**32 < 2**32 // one_in


def median(values: Iterable[int]) -> int:
    """Return the lower median of a collection that is not empty."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
