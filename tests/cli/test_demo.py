"""The demo's own promises; that its verdicts are right is shown by ``make demo``."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import yaml

from laggard_cli.demo import configuration
from laggard_cli.demo.acts import ACTS, Act, Truth
from laggard_cli.demo.command import chosen
from laggard_cli.demo.faults import Leak, Records, SlowStorage
from laggard_cli.demo.play import Play, Result, all_right
from laggard_cli.demo.stack import Stack
from laggard_cli.main import main
from laggard_cli.rules import render, rules_folder
from laggard_cli.rules.check import overridable
from laggard_cli.rules.profiles import load_profile
from tests.cli.test_diagnose import VERDICT
from tests.support.environments import processes_of


def test_an_act_is_right_only_with_exactly_the_truth_in_time() -> None:
    """A missing, a late, a wrong and an additional verdict are wrong; silence is right where nothing is injected."""
    act = Act("slow", "slow", truths=(Truth("TrainingStraggler", rank="2", phase="data"),))
    other = Act("slow", "slow", truths=(Truth("TrainingStraggler", rank="1", phase="data"),))
    assert Result(act, [VERDICT], 10).right
    assert not Result(act, [], None).right
    assert not Result(act, [VERDICT], None).right
    assert not Result(other, [VERDICT], 10).right
    assert not Result(Act("healthy", "healthy"), [VERDICT]).right
    assert Result(Act("healthy", "healthy")).right
    cause = Act("caused", "caused", truths=(Truth("TrainingRankFrozen", rank="2", beside=("TrainingStraggler",)),))
    assert not Result(cause, [VERDICT], None).right
    frozen = replace(VERDICT, alert="TrainingRankFrozen")
    assert Result(cause, [frozen, VERDICT], 10).right
    assert not Result(cause, [frozen, replace(VERDICT, rank="1")], 10).right
    assert Result(Act("any", "any phase", truths=(Truth("TrainingStraggler", rank="2"),)), [VERDICT], 10).right


def test_an_act_that_went_wrong_is_played_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both tries are shown; the second one counts; health and the end have one try, and so has what was right."""
    healthy, slow, twice = Act("healthy", "healthy"), ACTS[1], ACTS[2]
    outcomes = iter((Result(healthy), Result(slow), Result(slow, [VERDICT], 10), Result(twice), Result(twice)))
    log: list[Act | Result] = []
    monkeypatch.setattr(Play, "_warm_up", lambda _self: None)
    monkeypatch.setattr(Play, "_play", lambda _self, _act: next(outcomes))
    monkeypatch.setattr(Play, "_recover", lambda _self, act: log.append(act))
    stack = Stack(tmp_path, "run-1")
    play = Play(stack, (healthy, slow, twice), lambda _progress: None, log.append)
    results = play.play()
    assert [(result.act.name, result.right) for result in results] == [
        ("healthy", True),
        ("slow-data", False),
        ("slow-data", True),
        ("slow-backward", False),
        ("slow-backward", False),
    ]
    assert log == [results[0], results[1], slow, results[2], slow, results[3], twice, results[4], twice]
    assert all_right(results[:3])
    assert not all_right(results)
    assert not all_right(results[:2])
    assert not all_right([Result(healthy, [VERDICT]), *results[1:3]])


def test_of_two_faults_both_must_be_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The time is that of the last one, which may come when the first is gone, and watching ends a while after it."""
    truths = tuple(Truth("TrainingStraggler", rank=rank, phase="data") for rank in ("2", "1"))
    other = replace(VERDICT, rank="1")
    play = Play(Stack(tmp_path, "run-1"), (), lambda _progress: None, lambda _result: None)
    monkeypatch.setattr(play, "_clock", lambda limit: range(1, int(limit) + 1))
    monkeypatch.setattr(play, "_print", lambda *_: None)
    for fired, seconds in ((([VERDICT], [VERDICT, other]), 2), (([VERDICT], [other]), 2), (([VERDICT], []), None)):
        answers = iter(fired)
        monkeypatch.setattr(play, "_verdicts", lambda answers=answers: next(answers, []))
        result = Result(Act("both", "both", truths=truths))
        play._watch(result.act, result, 10)
        assert result.seconds == seconds
        assert result.right == (seconds is not None)
        assert next(answers, None) is None


def test_the_acts_are_those_that_are_promised() -> None:
    """Health, eight faults, three of them at once, and a clean end."""
    assert [(act.name, [(truth.alert, truth.rank) for truth in act.truths]) for act in ACTS] == [
        ("healthy", []),
        ("slow-data", [("TrainingStraggler", "2")]),
        ("slow-backward", [("TrainingStraggler", "1")]),
        ("input-bound", [("TrainingInputBound", "")]),
        ("imbalance", [("TrainingDataImbalance", "")]),
        (
            "garbage-leak-checkpoint",
            [("TrainingGarbageCollection", ""), ("TrainingMemoryLeak", "1"), ("TrainingCheckpointSlow", "")],
        ),
        ("frozen", [("TrainingRankFrozen", "3")]),
        ("end", []),
    ]
    assert all(len(act.faults) == len(act.truths) for act in ACTS)


def test_acts_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The healthy act is always played, for it measures the step; acts keep their order; a wrong name is one line."""
    assert [act.name for act in chosen(["frozen", "slow-data"])] == ["healthy", "slow-data", "frozen"]
    assert chosen([act.name for act in ACTS]) == list(ACTS)
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--acts", "leek"])
    assert "invalid choice: 'leek'" in capsys.readouterr().err


def test_the_demo_has_the_rules_of_the_fast_profile(tmp_path: Path) -> None:
    """But for windows that an act has no time for; and each of its thresholds is one that a run may override."""
    configuration.write(tmp_path, "run-1", {"alertmanager": "http://127.0.0.1:2"}, {"ranks": [1]}, pager=3)
    overrides = yaml.safe_load((tmp_path / "rules" / "demo.yml").read_text())["groups"][0]["rules"]
    assert {rule["labels"]["training_run"] for rule in overrides} == {"run-1"}
    assert {rule["labels"]["name"] for rule in overrides} <= overridable()
    written = {path.name: path.read_text() for path in (tmp_path / "rules").glob("*.yml") if path.name != "demo.yml"}
    fast = load_profile(rules_folder(), "fast")
    most, trends = configuration.profiles()
    usual, slow = render(most), render(trends)
    assert written == {name: (slow if _is_trend(name) else usual)[name] for name in render("fast")}
    for profile in (most, trends):
        assert all(profile.durations[length] <= wait for length, wait in fast.durations.items())
        assert {name for name, value in profile.thresholds.items() if value != fast.thresholds.get(name)} == {
            "memory_leak_part",
            "memory_leak_window_seconds",
            "spread_steps",
        }
        # A window is twice as long as the means that it looks at, so that one hiccup cannot fill it.
        minutes = {length: profile.durations[timedelta(minutes=length)].total_seconds() for length in (1, 2, 3, 6, 10)}
        assert (minutes[2], minutes[6], minutes[10]) == (2 * minutes[1], 2 * minutes[3], 2 * minutes[1])


def _is_trend(name: str) -> bool:
    return name.endswith(("-memory.yml", "-pipeline.yml", "-goodput.yml"))


def test_a_leak_grows_with_time_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes a second are held, whatever a step takes, until the fault is gone."""
    now = iter((1.0, 1.5, 3.5, 4.0, 5.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    leak = Leak()
    held: list[int] = []
    for rate in (1000, 1000, 1000, 0, 1000):
        leak.grow(rate)
        held.append(leak.held)
    assert held == [0, 500, 2500, 0, 1000]


def test_records_make_the_collector_work() -> None:
    """Keeping records brings about collections of all objects; without the fault nothing is kept."""
    collected: list[int] = []

    def on_collection(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            collected.append(info["generation"])

    records = Records()
    gc.callbacks.append(on_collection)
    try:
        records.keep(0.5)
    finally:
        gc.callbacks.remove(on_collection)
    assert len(collected) > 20
    records.keep(0)
    assert records.live == 0


def test_slow_storage_takes_its_time(tmp_path: Path) -> None:
    """A checkpoint takes the seconds of the fault to write, and is whole."""
    state = {"weight": torch.arange(100_000, dtype=torch.float32)}
    path = tmp_path / "model.pt"
    started = time.perf_counter()
    with SlowStorage(str(path), 0.3, 400_000) as file:
        torch.save(state, file)
    assert 0.3 <= time.perf_counter() - started < 1
    assert torch.equal(torch.load(path)["weight"], state["weight"])


def test_interrupt_ends_everything(tmp_path: Path) -> None:
    """Ctrl-C in the middle leaves no process and no file, whatever was started until then."""
    marker = f"LAGGARD_TEST_MARKER={tmp_path}"
    name, _, value = marker.partition("=")
    demo = subprocess.Popen(
        # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
        ["env", "--default-signal=INT", sys.executable, "-m", "laggard_cli.main", "demo"],
        env={**os.environ, name: value, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while sum("faulty.py" in line for line in processes_of(marker)) < 5:  # the launcher and four ranks
        assert time.monotonic() < deadline
        assert demo.poll() is None, demo.communicate()[0]
        time.sleep(0.2)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=40)
    assert demo.returncode == 130, output
    assert "Traceback" not in output
    while processes_of(marker):  # data workers notice the end of their rank after a while
        assert time.monotonic() < deadline + 40, processes_of(marker)
        time.sleep(0.2)
    assert list(tmp_path.iterdir()) == []
