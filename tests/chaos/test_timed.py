"""What a rank's stopwatch says of laggard."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from lab.chaos.own_play import Cost
from lab.chaos.timed import Clock, Stopwatch, taken
from laggard._hooks import base
from laggard._hooks.base import Hook


def test_a_call_that_holds_training_up_fails_its_case() -> None:
    """A call of more than 10 ms, or calls of more than half a per cent, each with the figure; at the limits neither."""
    assert Cost(where="end", longest=0.010, calls=0.005, drain=0.5).problems() == []
    assert Cost(where="end", longest=0.0101, calls=0.005, drain=0).problems() == ["end held training up for 10.1 ms"]
    assert Cost(where="end", longest=0, calls=0.006, drain=0).problems() == [
        "laggard took 0.60% of the training, its budget is 0.50%"
    ]


def test_a_wait_for_a_processor_is_not_laggards() -> None:
    """A call takes its processor's time and what else it waits for, less what it or whom it waits for was put aside."""
    began = Clock(0, 0, 0, 0)
    assert taken(began, Clock(wall=20, processor=3, delayed=0, others_delayed=0)) == 20
    assert taken(began, Clock(wall=20, processor=3, delayed=12, others_delayed=0)) == 8
    assert taken(began, Clock(wall=20, processor=3, delayed=12, others_delayed=4)) == 4
    assert taken(began, Clock(wall=20, processor=3, delayed=0, others_delayed=90)) == 3


def test_the_stopwatch_times_laggard_and_not_what_it_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hook that takes 30 ms around a call of 300 ms, the 30 ms are found, and the hook by its name."""
    monkeypatch.setattr(Hook, "replace", Hook.replace)
    watch = Stopwatch()
    watch.install()
    owner = SimpleNamespace(wait=lambda: time.sleep(0.3))
    hook = Hook(SimpleNamespace(recorder=None))  # pyright: ignore[reportArgumentType] - it asks nothing of its host
    text = "def make(wait):\n    def timed_wait():\n        sleep(0.03)\n        wait()\n    return timed_wait"
    names: dict[str, Any] = {"sleep": time.sleep}
    exec(compile(text, base.__file__, "exec"), names)
    hook.replace(owner, "wait", names["make"])
    watch.start()
    owner.wait()
    watch.stop()
    assert watch.where == "timed_wait"
    assert 0.02 < watch.longest * 1e-9 < 0.2
