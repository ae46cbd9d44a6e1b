"""Which signals a rank says it can measure, from its first report on, and what comes in which report."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest

from laggard._events import OPTIMIZER_STEP
from laggard._hooks import Hook
from laggard._publisher import Publisher
from laggard._recorder import Recorder
from laggard._steps import Step
from laggard.shared.metrics import SIGNALS
from laggard.shared.phases import Phase, RankState
from tests.support.launch import PROGRAMS, Launcher
from tests.support.otlp import Receiver

#: Of each loop the steps and the signals that are not there at its end.
LOOPS: dict[str, tuple[int, set[str]]] = {
    "by_hand": (0, {"optimizer"}),
    "replicated": (3, set()),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_signal_is_there_where_its_phase_is(loop: str, launcher: Launcher, receiver: Receiver) -> None:
    """A loop that updates by hand has no step and says why; a run of three steps can measure all."""
    steps, missing = LOOPS[loop]
    launcher.run_forked(PROGRAMS / "signals.py", loop, **receiver.environment, OTEL_METRIC_EXPORT_INTERVAL="200")
    available = receiver.series("training.signal.available")
    assert {dict(labels)["training.signal"]: value for labels, value in available.items()} == {
        signal: signal not in missing for signal in SIGNALS
    }
    assert sum(receiver.series("training.steps").values()) == steps


class Working(Hook):
    """Stands for a hook that works."""

    name = "working"

    @property
    def available(self) -> bool:
        """Whether the signal can be trusted."""
        return True


class Data(Working):
    """That of data."""

    signal = "data"


class Optimizer(Working):
    """That of optimizers."""

    signal = "optimizer"


class Reported:
    """Takes what a rank reports, keeps the signals and counts the rest."""

    signals_available: dict[str, bool]

    def __init__(self) -> None:
        self.called: Counter[str] = Counter()

    def signals(self, available: dict[str, bool]) -> None:
        """Keep them."""
        self.signals_available = available

    def __getattr__(self, name: str) -> Any:
        return lambda *_args: self.called.update([name])


def step(number: int, *phases: Phase) -> Step:
    """A step with time in some phases."""
    return Step(number, 0, 1, tuple(int(phase in phases) for phase in Phase), (), "warmup")


def test_a_phase_that_is_not_seen_any_more_is_no_signal() -> None:
    """What was seen before the first step counts until 64 steps have none of it, however many a drain takes.

    But for a fetch, which may have been an evaluation's: the first step tells.
    """
    host: Any = type("Host", (), {"recorder": Recorder()})
    publisher = Publisher(host.recorder, [Data(host), Optimizer(host)], deque())
    reported: Any = Reported()

    def available() -> set[str]:
        publisher._report_rest(reported, RankState.RUNNING)
        return {name for name, there in reported.signals_available.items() if there}

    assert available() == set()
    publisher.note([(Phase.DATA, 0, 1)])
    assert available() == {"data"}
    publisher.note([(OPTIMIZER_STEP, 1, 2)])
    assert available() == {"data", "optimizer"}
    publisher.report([step(number) for number in range(63)])
    assert available() == {"optimizer"}
    publisher.note([(Phase.DATA, 0, 1)])  # what no step has is no part of one
    publisher.report([step(63)])
    assert available() == set()
    publisher.report([step(64, Phase.DATA, Phase.OPTIMIZER), *(step(number) for number in range(65, 128))])
    assert available() == {"data", "optimizer"}
    publisher.report([step(128)])
    assert available() == set()


def test_what_is_dear_is_reported_once_a_scrape_and_in_the_last_drain() -> None:
    """Quantiles come with the first drain, with each fifth and with the last; the newest step with every drain."""
    host: Any = type("Host", (), {"recorder": Recorder()})
    publisher = Publisher(host.recorder, [], deque())
    reported: Any = Reported()
    for number in range(7):
        publisher.report([step(number)])
        publisher._report_rest(reported, RankState.RUNNING)
    assert (reported.called["newest"], reported.called["recent"]) == (7, 2)
    publisher._report_rest(reported, RankState.FINISHED, last=True)
    assert (reported.called["newest"], reported.called["recent"]) == (7, 3)
