"""A profile of the next steps on request: what is in it, who goes first, and that training never notices."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import laggard
from laggard import _identity, _process
from laggard._events import UPDATE
from tests.support.launch import PROGRAMS, Launcher

IDENTITY = _identity.Identity("r/1", 3, 1, 8, 0, "", "", "")


class Reported:
    """Stands for a report of which only the identity is asked."""

    identity = IDENTITY


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_process.Process]:
    """This process, instrumented; the test is its drain."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path))
    _process.instrument()
    current = _process.current()
    assert current is not None
    current._settled = True
    yield current
    if _process.current() is not None:
        _process.uninstrument()


class Loop:
    """A plain loop, a step at a time."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def steps(self, count: int) -> list[float]:
        losses: list[float] = []
        for _ in range(count):
            loss = self.model(torch.ones(2, 4)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def drain(process: _process.Process) -> None:
    """One turn of the drain."""
    process.profiler.report(Reported())  # pyright: ignore[reportArgumentType] - stands for a report


def wait_for(ready: Callable[[], Any]) -> None:
    """Wait until ``ready`` is true."""
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def operations(path: Path) -> Counter[str]:
    """How often each operation stands in a trace."""
    events = json.loads(path.read_text())["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") in ("cpu_op", "user_annotation"))


def test_the_asked_steps_are_in_the_file_and_training_is_the_same(process: _process.Process, tmp_path: Path) -> None:
    """Exactly so many forwards and updates as asked for, then nothing is left on, and the losses are bit-identical."""
    plain = Loop().steps(12)
    loop = Loop()
    losses = loop.steps(2)
    laggard.profile(steps=3, path=tmp_path / "p.json")
    assert process.at_step is None
    drain(process)
    losses += loop.steps(10)
    wait_for((tmp_path / "p.json").exists)
    counts = operations(tmp_path / "p.json")
    assert (counts["Optimizer.step#SGD.step"], counts["aten::square"]) == (3, 3)
    assert losses == plain
    wait_for(lambda: process.profiler._capture is None)
    assert process.at_step is None
    assert not torch.autograd.profiler._is_profiler_enabled
    assert [file.name for file in tmp_path.iterdir()] == ["p.json"]


def test_a_second_request_is_refused_and_a_later_one_served(process: _process.Process, tmp_path: Path) -> None:
    """Never two at once; where no path is given the file goes to the state folder and names run and rank."""
    answers: list[str] = []
    loop = Loop()
    for _ in range(2):
        process.profiler.request(1, "", answers.append)
    drain(process)
    assert answers == ["profile refused: another one is not finished"]
    loop.steps(3)
    wait_for(lambda: len(answers) == 2)
    process.profiler.request(1, str(tmp_path / "absent" / "p.json"), answers.append)
    drain(process)
    loop.steps(3)
    wait_for(lambda: len(answers) == 3)
    assert answers[1] == ""
    assert answers[2].startswith(f"profile cannot be written to {tmp_path}/absent/p.json")
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("r%2F1-3.")
    assert file.name.endswith(".profile.json")


def test_a_script_that_profiles_itself_goes_first(process: _process.Process, tmp_path: Path) -> None:
    """While it profiles, or waits to, a request is refused; one that runs makes way, and the script's is whole."""
    answers: list[str] = []
    loop = Loop()
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)) as own:
        process.profiler.request(2, "", answers.append)
        drain(process)
        loop.steps(1)
        own.step()
        loop.steps(1)
    assert answers == ["profile refused: the script itself is profiling"]
    process.profiler.request(5, "", answers.append)
    drain(process)
    loop.steps(2)
    with torch.profiler.profile() as own:
        loop.steps(4)
    assert {event.key: event.count for event in own.key_averages()}["aten::square"] == 4
    assert answers[1:] == ["profile ended early: the script itself begins to profile"]
    loop.steps(3)
    assert process.at_step is None
    process.profiler.request(1, "", answers.append)
    drain(process)
    loop.steps(2)
    wait_for(lambda: len(answers) == 3)
    assert answers[2] == ""
    assert len(list(tmp_path.iterdir())) == 1


def test_steps_named_by_hand_are_what_is_counted(process: _process.Process, tmp_path: Path) -> None:
    """Several updates in one named step are one step of the profile."""
    loop = Loop()
    laggard.profile(steps=2, path=tmp_path / "p.json")
    drain(process)
    for _ in range(5):
        with laggard.step():
            loop.steps(3)
    wait_for((tmp_path / "p.json").exists)
    assert operations(tmp_path / "p.json")["aten::square"] == 6


def test_another_thread_does_not_stop_it(process: _process.Process, tmp_path: Path) -> None:
    """Updates of another thread count for nothing; it can only ask for an early end."""
    loop = Loop()
    laggard.profile(steps=9, path=tmp_path / "p.json")
    drain(process)
    loop.steps(1)
    for _ in range(3):
        other = threading.Thread(target=lambda: process.at_step and process.at_step(UPDATE))
        other.start()
        other.join()
    loop.steps(1)
    other = threading.Thread(target=process.profiler._cancel, args=("another thread wants it",))
    other.start()
    other.join()
    assert process.profiler._capture is not None
    loop.steps(1)
    wait_for((tmp_path / "p.json").exists)


def test_a_withdrawn_profile_stops_and_leaves_no_file(process: _process.Process, tmp_path: Path) -> None:
    """Before its first step, in the middle and while its file is written; the next request is served, not refused."""
    answers: list[str] = []

    def ask(steps: int) -> Callable[[str], None]:
        def answer(reason: str) -> None:
            answers.append(reason)

        process.profiler.request(steps, str(tmp_path / "p.json"), answer)
        return answer

    loop = Loop()
    process.profiler.withdraw(ask(9))  # the drain has not seen it
    drain(process)
    loop.steps(2)
    for before in (0, 2):
        asked = ask(9)
        drain(process)
        loop.steps(before)
        process.profiler.withdraw(asked)
        ask(1)
        drain(process)
        assert torch.autograd.profiler._is_profiler_enabled == bool(before)
        loop.steps(1)
        assert not torch.autograd.profiler._is_profiler_enabled
        assert answers.pop() == "profile withdrawn"
        drain(process)
        loop.steps(3)
        wait_for(lambda: answers)
        assert answers.pop() == ""
        (tmp_path / "p.json").unlink()
    asked = ask(1)
    drain(process)
    capture = process.profiler._capture
    assert capture is not None
    loop.steps(1)
    profiler = capture.profiler
    write = profiler.export_chrome_trace

    def export(path: str) -> None:
        process.profiler.withdraw(asked)
        write(path)

    profiler.export_chrome_trace = export
    loop.steps(1)
    wait_for(lambda: answers)
    assert (answers, list(tmp_path.iterdir())) == (["profile withdrawn"], [])
    assert process.at_step is None


def test_stacks_are_recorded_where_asked_for(process: _process.Process, tmp_path: Path) -> None:
    """The trace has the Python function between the phases, and the losses are those of a run without it."""
    plain = Loop().steps(6)
    laggard.profile(steps=2, path=tmp_path / "p.json", stacks=True)
    drain(process)
    assert Loop().steps(6) == plain
    wait_for((tmp_path / "p.json").exists)
    events = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    functions = {event["name"] for event in events if event.get("cat") == "python_function"}
    assert any(name.endswith(": steps") and "test_profile.py" in name for name in functions)


def test_a_profiler_that_fails_costs_one_line(
    process: _process.Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where torch's profiler raises, training goes on, and a later request is served."""

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(torch.profiler.profile, "start", broken)
    laggard.profile()
    drain(process)
    assert Loop().steps(3) == Loop().steps(3)
    assert [record.message for record in caplog.records] == ["profile ended early: RuntimeError: on purpose"]
    assert (process.at_step, process.profiler._capture) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"steps": 0}, "laggard.profile(steps=0) is ignored: not a whole number of 1 to 1000"),
        ({"steps": "5"}, "laggard.profile(steps='5') is ignored: not a whole number of 1 to 1000"),
        ({"path": 7}, "laggard.profile(path=7) is ignored: no path"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: dict[str, Any], line: str, process: _process.Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised and nothing is asked for."""
    laggard.profile(**arguments)
    assert [record.message for record in caplog.records] == [line]
    assert not process.profiler._requests


def test_the_end_of_the_process_keeps_what_there_is(process: _process.Process, tmp_path: Path) -> None:
    """A job that ends cleanly inside its profile writes it; one that is taken out or killed says why there is none."""
    loop = Loop()
    laggard.profile(steps=100, path=tmp_path / "p.json")
    drain(process)
    loop.steps(4)
    process.profiler.finish(export=True)
    assert operations(tmp_path / "p.json")["aten::square"] == 3
    answers: list[str] = []
    process.profiler.request(100, "", answers.append)
    drain(process)
    loop.steps(2)
    _process.uninstrument()
    assert answers == ["profile ended early: laggard was taken out of the process"]
    assert not torch.autograd.profiler._is_profiler_enabled


@pytest.mark.parametrize("path", ["native", "python"])
def test_a_script_that_records_stacks_sees_its_modules(path: str, tmp_path: Path) -> None:
    """The profiler looks for a module in the frame that calls it, and finds the script's, also in the first steps."""
    with Launcher(tmp_path) as launcher:
        printed = launcher.run_forked(PROGRAMS / "stacks_of_modules.py", LAGGARD_HOT_PATH=path)
    modules = ["nn.Module: Linear_0", "nn.Module: Linear_1", "nn.Module: Model_0"]
    assert json.loads(printed) == [modules, modules]
