"""Plays the acts: injects each fault, watches Prometheus, and holds the verdicts against what was injected."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from laggard_cli.demo.acts import ACTS, RANKS, Act, Fault, Truth
from laggard_cli.demo.stack import Stack
from laggard_cli.diagnose.gather import diagnose, firing
from laggard_cli.diagnose.model import Diagnosis, Verdict
from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus

_POLL_SECONDS = 0.5
#: The job's start, its warm-up, and enough steps for a first mean.
_WARM_UP_SECONDS = 120
#: For so long all must be well then: as long as a mean reaches back.
_SETTLED_SECONDS = 8
#: A verdict must stand alone for so long: what else fires meanwhile is a false alarm.
_HOLD_SECONDS = 4
#: After a fault is gone, alerts must resolve within this time, and stay so until the means have forgotten it: an alert
#: that rests on the newest steps is gone at once, and one that rests on a mean may come after it.
_RECOVERY_SECONDS = 90
_CALM_SECONDS = _SETTLED_SECONDS

_STEP = "run:training_step_seconds:mean"
_SELF_TIME_SHARE = (
    "sum(max by (training_run, training_rank) (rate(training_telemetry_self_time_seconds_total[30s]))) "
    "/ (sum(max by (training_run, training_rank) (rate(training_step_duration_seconds_sum[30s]))) + sum(max by "
    "(training_run, training_rank, training_reason) (rate(training_steps_excluded_duration_seconds_total[30s]))))"
)


@dataclass
class Result:
    """How an act went."""

    act: Act
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    """What fired, each once."""
    seconds: float | None = None
    """From the injection to the last alert that tells a truth; None when one did not fire, or where none should."""
    pages: list[str] = field(default_factory=list[str])
    """What the pager got, through Alertmanager."""

    @property
    def right(self) -> bool:
        """Whether each truth was found in time, and nothing beside them but what is true as well."""
        truths = self.act.truths
        if truths and self.seconds is None:
            return False
        return all(
            any(_is(verdict, truth) or _is_beside(verdict, truth) for truth in truths) for verdict in self.verdicts
        )


@dataclass(frozen=True)
class Progress:
    """What a display needs to know now."""

    act: Act | None
    doing: str
    elapsed: float
    limit: float
    step_seconds: float | None
    verdicts: list[Verdict]


def all_right(results: Sequence[Result]) -> bool:
    """Whether the last try of each act was right."""
    return all({result.act: result.right for result in results}.values())


Show = Callable[[Progress], None]


class Play:
    """Plays acts on a running stack; the first of them is the healthy one, by which faults are measured."""

    def __init__(self, stack: Stack, acts: Sequence[Act], show: Show, show_result: Callable[[Result], None]) -> None:
        self._stack = stack
        self._acts = acts
        self._show = show
        self._show_result = show_result
        self._prometheus = Prometheus(stack.addresses["prometheus"])
        self._step_seconds = 0.0
        self.self_time_share: float | None = None
        """Time in laggard's hooks as a share of the step, while healthy."""
        self.healthy: Diagnosis | None = None

    def play(self) -> list[Result]:
        """Play and return the result of each act. Raises :class:`CommandError` when the job or a server fails.

        An act with a fault that went wrong is played once more, and has two results: other work on the machine makes
        ranks slow too.
        """
        self._warm_up()
        results: list[Result] = []
        for act in self._acts:
            results.append(self._try(act))
            if not results[-1].right and act.faults:
                results.append(self._try(act))
        self._prometheus.close()
        return results

    def _try(self, act: Act) -> Result:
        result = self._play(act)
        self._show_result(result)
        if act.faults:
            self._recover(act)
        return result

    def _warm_up(self) -> None:
        """Wait until the rules compare the ranks, and nothing of the start is left in their means."""
        calm = 0.0
        for elapsed in self._clock(_WARM_UP_SECONDS):
            verdicts = self._verdicts()
            self._print(None, "starting the job", elapsed, _WARM_UP_SECONDS, verdicts)
            ready = len(self._diagnosis().ranks) == RANKS and not verdicts
            calm = calm + _POLL_SECONDS if ready else 0.0
            if calm >= _SETTLED_SECONDS:
                return
        raise CommandError(f"no verdict is possible after {_WARM_UP_SECONDS} s; logs are in {self._stack.folder}")

    def _play(self, act: Act) -> Result:
        result = Result(act)
        pages_before = len(self._stack.pages)
        self._inject(act.faults)
        if act is ACTS[-1]:
            self._stack.finish_training()
        self._watch(act, result, act.seconds)
        if act is ACTS[0]:
            self._measure()
        result.pages += [_page(page) for page in self._stack.pages[pages_before:]]
        return result

    def _watch(self, act: Act, result: Result, limit: float) -> None:
        """Collect what fires until all truths have stood for a while, or the time is up."""
        missing = list(act.truths)
        for elapsed in self._clock(limit + _HOLD_SECONDS if missing else limit):
            verdicts = self._verdicts()
            self._print(act, "watching", elapsed, limit, verdicts)
            known = {_key(verdict) for verdict in result.verdicts}
            result.verdicts += [verdict for verdict in verdicts if _key(verdict) not in known]
            if missing and elapsed <= limit:
                missing = [truth for truth in missing if not any(_is(verdict, truth) for verdict in verdicts)]
                result.seconds = None if missing else elapsed
            if result.seconds is not None and elapsed > result.seconds + _HOLD_SECONDS:
                return

    def _recover(self, act: Act) -> None:
        """Take the fault away and wait until no alert fires and the means have forgotten it."""
        self._stack.control({})
        self._stack.signal_ranks(signal.SIGCONT)
        calm = 0.0
        for elapsed in self._clock(_RECOVERY_SECONDS):
            verdicts = self._verdicts()
            self._print(act, "recovering", elapsed, _RECOVERY_SECONDS, verdicts)
            calm = 0.0 if verdicts else calm + _POLL_SECONDS
            if calm >= _CALM_SECONDS:
                return

    def _inject(self, faults: Sequence[Fault]) -> None:
        content: dict[str, Any] = {}
        for fault in faults:
            if fault.place == "stop":
                self._stack.signal_ranks(signal.SIGSTOP, fault.rank)
            else:
                amount = fault.amount + fault.steps * self._step_seconds
                content[fault.place] = {"rank": fault.rank, "amount": amount}
        self._stack.control(content)

    def _measure(self) -> None:
        self.healthy = self._diagnosis()
        self._step_seconds = self.healthy.facts["step_seconds"]
        share = self._prometheus.query(_SELF_TIME_SHARE)
        self.self_time_share = share[0].value if share else None

    def _diagnosis(self) -> Diagnosis:
        found = [diagnosis for diagnosis in diagnose(self._prometheus, None) if diagnosis.run == self._stack.run]
        return found[0] if found else Diagnosis(self._stack.run, (), {}, ())

    def _verdicts(self) -> list[Verdict]:
        return firing(self._prometheus)

    def _print(self, act: Act | None, doing: str, elapsed: float, limit: float, verdicts: list[Verdict]) -> None:
        step = self._prometheus.query(_STEP)
        self._show(Progress(act, doing, elapsed, limit, step[0].value if step else None, verdicts))

    def _clock(self, limit: float) -> _Clock:
        return _Clock(limit, self._stack.check)


class _Clock:
    """Yields the seconds since its start, every half second, and checks the processes meanwhile."""

    def __init__(self, limit: float, check: Callable[[], None]) -> None:
        self._limit = limit
        self._check = check
        self._started = time.monotonic()

    def __iter__(self) -> _Clock:
        return self

    def __next__(self) -> float:
        time.sleep(_POLL_SECONDS)
        self._check()
        elapsed = time.monotonic() - self._started
        if elapsed > self._limit + _POLL_SECONDS:
            raise StopIteration
        return elapsed


def _page(page: dict[str, Any]) -> str:
    return f"[{page['labels']['severity']}] {page['labels']['alertname']}: {page['annotations']['summary']}"


def _is(verdict: Verdict, truth: Truth) -> bool:
    found = (verdict.alert, verdict.rank, verdict.phase if truth.phase else "")
    return found == (truth.alert, truth.rank, truth.phase)


def _is_beside(verdict: Verdict, truth: Truth) -> bool:
    return verdict.alert in truth.beside and verdict.rank == truth.rank


def _key(verdict: Verdict) -> tuple[str, str, str]:
    return verdict.alert, verdict.rank, verdict.phase
