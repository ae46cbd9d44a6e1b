"""The last steps on request: by call, by signal and by control file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laggard import _identity, _process, _wakeup
from laggard._steps import Step
from laggard._trace import TraceDump, chrome_trace, json_lines
from laggard.shared import control, statefile
from laggard.shared.control import Reply, Request
from laggard.shared.metrics import RECENT_STEPS
from laggard.shared.phases import Phase
from tests.support.launch import PROGRAMS, Launcher

IDENTITY = _identity.Identity("läufer/7", 3, 1, 8, 0, "", "gpt", "node-1")
MS = 1_000_000


def a_step(number: int, intervals: int = 2) -> Step:
    """A step of 10 ms: data, something else, forward."""
    begin = 1_000_000_007 + number * 10 * MS
    pieces = [(Phase.DATA, begin, begin + 2 * MS + 3), (Phase.FORWARD, begin + 3 * MS, begin + 10 * MS)]
    pieces += [(Phase.FORWARD, begin + 10 * MS, begin + 10 * MS)] * (intervals - 2)
    phases = [0] * len(Phase)
    phases[Phase.DATA], phases[Phase.FORWARD], phases[Phase.OTHER] = 2 * MS + 3, 7 * MS, MS - 3
    return Step(number, begin, begin + 10 * MS, tuple(phases), tuple(pieces), "warmup" if number == 1 else "")


def wait_for(ready: Callable[[], Any]) -> Any:
    """What ``ready`` returns once that is true."""
    deadline = time.monotonic() + 30
    while not (found := ready()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def check_chrome(trace: dict[str, Any], rank: int) -> list[int]:
    """Every phase lies inside its step without overlap; return the numbers of the steps."""
    events = trace["traceEvents"]
    (name,) = [event for event in events if event["name"] == "process_name"]
    assert (name["ph"], name["pid"], name["args"]) == ("M", rank, {"name": f"rank {rank}"})
    numbers: list[int] = []
    step_end = inside = 0
    for event in (event for event in events if event["ph"] == "X"):
        assert {type(event[key]) for key in ("ts", "dur", "pid", "tid")} == {int}
        assert event["pid"] == rank
        begin, end = event["ts"], event["ts"] + event["dur"]
        if event["name"] == "step":
            assert begin >= step_end
            numbers.append(event["args"]["step"])
            step_end, inside = end, begin
        elif event["name"] in {phase.label for phase in Phase}:
            assert inside <= begin <= end <= step_end
            inside = end
    return numbers


def test_a_trace_keeps_times_nesting_and_sums() -> None:
    """Steps touch, phases nest and add up in both formats; a slow collective stands inside its phase by name."""
    steps = [a_step(number) for number in (1, 2, 3)]
    begin = steps[1].started
    collectives = deque([("all_reduce", begin + 4 * MS, begin + 5 * MS), ("barrier", begin, begin + 100)])
    before = time.time_ns()
    trace = json.loads(json.dumps(chrome_trace(IDENTITY, steps, collectives)))
    offset = before - time.perf_counter_ns()
    assert check_chrome(trace, 3) == [1, 2, 3]
    assert trace["otherData"] == {"run": "läufer/7", "host": "node-1", "workload": "gpt"}
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    first, second = [event for event in spans if event["name"] == "step"][:2]
    assert first["ts"] == pytest.approx((steps[0].started + offset) / 1000, abs=100_000)
    assert (first["dur"], first["args"]) == (10_000, {"step": 1, "excluded": "warmup"})
    assert second["ts"] == first["ts"] + first["dur"]
    (collective,) = [event for event in spans if event["name"] in ("all_reduce", "barrier")]
    assert (collective["name"], collective["dur"]) == ("all_reduce", 1000)
    line, _, newest = json.loads(json.dumps(list(json_lines(IDENTITY, steps, {"host_rss": 7}))))
    assert (line["run"], line["rank"], line["step"], line["excluded"]) == ("läufer/7", 3, 1, "warmup")
    assert (line["world_size"], "memory_peak_bytes" in line, newest["memory_peak_bytes"]) == (8, False, {"host_rss": 7})
    assert sum(line["phases_ns"].values()) == line["duration_ns"] == 10 * MS
    assert "peer_group" not in line
    (grouped,) = json_lines(replace(IDENTITY, peer_group="stage1"), steps[:1])
    assert grouped["peer_group"] == "stage1"
    assert line["intervals"] == [["data", 0, 2 * MS + 3], ["forward", 3 * MS, 7 * MS]]


def test_what_is_kept_is_bounded() -> None:
    """Neither many steps nor steps of many intervals grow the memory without bound, and the newest stay."""
    dump = TraceDump(_process.Process())
    dump.steps_ended([a_step(number) for number in range(RECENT_STEPS + 10)])
    assert [step.number for step in dump._steps] == list(range(10, RECENT_STEPS + 10))
    dump.steps_ended([a_step(number, intervals=20_000) for number in range(1000, 1003)])
    assert [step.number for step in dump._steps] == [1002]
    assert dump._intervals == 20_000


def test_a_rank_that_runs_is_asked_by_signal_and_by_control_file(launcher: Launcher, tmp_path: Path) -> None:
    """Each request gives one whole file, a bad one gives a reason, and training ends as if nothing had been asked."""
    end = tmp_path / "end"
    process = launcher.fork(PROGRAMS / "on_request.py", end, LAGGARD_TRACE_SIGNAL="SIGRTMIN+1", RANK="3")
    folder = launcher.state_directory
    (state,) = wait_for(lambda: folder.exists() and list(folder.glob("*.state")))
    wait_for(lambda: statefile.read(state).steps > 30)

    os.kill(statefile.read(state).facts.pid, signal.SIGRTMIN + 1)
    (written,) = wait_for(lambda: list(folder.glob("test-3.*.trace.json")))
    numbers = check_chrome(json.loads(written.read_text()), 3)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(numbers) > 30

    def ask(request: Request) -> Reply:
        control.write(folder / "test-3.control", request)

        def answer() -> Reply | None:
            if not (folder / "test-3.reply").exists():
                return None
            reply = control.read_reply(folder / "test-3.reply", os.geteuid())
            return reply if reply.id == request.id and reply.status != "accepted" else None

        return wait_for(answer)

    lines = tmp_path / "steps.jsonl"
    assert ask(Request("one", "trace", str(lines))) == Reply("one", "done")
    for line in map(json.loads, lines.read_text().splitlines()):
        assert sum(line["phases_ns"].values()) == line["duration_ns"]
        assert {name for name, _, _ in line["intervals"]} <= set(line["phases_ns"])
    lines.unlink()
    reply = ask(Request("two", "trace", str(tmp_path / "absent" / "x.json")))
    assert (reply.status, "No such file" in reply.reason) == ("failed", True)
    # The same id again is the same request.
    control.write(folder / "test-3.control", Request("one", "trace", str(lines)))
    os.utime(folder / "test-3.control")
    time.sleep(1.5)
    assert not lines.exists()
    assert len(list(folder.glob("*.trace.json"))) == 1

    end.touch()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output


def test_a_rank_that_is_held_below_python_writes_its_trace(launcher: Launcher, tmp_path: Path) -> None:
    """In a barrier no handler of Python's runs: the trace is there while the rank still waits, and is written once."""
    end = tmp_path / "end"
    process = launcher.fork_ranks(2, PROGRAMS / "held.py", end, LAGGARD_TRACE_SIGNAL="SIGRTMIN+1")
    folder = launcher.state_directory

    def held() -> statefile.Snapshot | None:
        for path in folder.glob("*.state"):
            with contextlib.suppress(statefile.StateFileError):  # not yet complete
                state = statefile.read(path)
                if state.facts.rank == 0 and state.steps == 19 and state.phase is Phase.COMMUNICATION:
                    return state
        return None

    before: statefile.Snapshot = wait_for(held)
    assert [group.started - group.finished for group in before.groups] == [1]
    os.kill(before.facts.pid, signal.SIGRTMIN + 1)
    (written,) = wait_for(lambda: list(folder.glob("test-0.*.trace.json")))
    assert held() == before
    assert check_chrome(json.loads(written.read_text()), 0) == list(range(1, 20))
    end.touch()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.count("released") == 2
    assert list(folder.glob("*.trace.json")) == [written]


@pytest.mark.parametrize(("name", "reason"), [("SIGNONSENSE", "no such signal"), ("SIGINT", "handler of its own")])
def test_a_signal_that_can_not_be_used_is_one_line(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown signal, or one that the process handles itself, is named with the reason and left alone."""
    monkeypatch.setenv("LAGGARD_TRACE_SIGNAL", name)
    before = signal.getsignal(signal.SIGINT)
    process = _process.Process()
    process._wakeup = wakeup = _wakeup.Wakeup()
    TraceDump(process).training_began()
    wakeup.forget()
    assert signal.getsignal(signal.SIGINT) is before
    (record,) = caplog.records
    assert name in record.message
    assert reason in record.message


@pytest.mark.parametrize("compiled", [True, False])
def test_a_signal_is_one_request_and_is_given_back(*, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes the drain thread; where that is compiled, Python still sees the default action, and in the end it is."""
    monkeypatch.setenv("LAGGARD_TRACE_SIGNAL", "USR2")
    if not compiled:
        monkeypatch.setattr(_wakeup, "sigaction", None)
    process = _process.Process()
    process._wakeup = wakeup = _wakeup.Wakeup()
    dump = TraceDump(process)
    dump.training_began()
    assert (signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL) == compiled
    assert signal.set_wakeup_fd(-1) == -1
    os.kill(os.getpid(), signal.SIGUSR2)
    dump.woken(wakeup.wait(1))
    assert len(dump._requests) == 1
    assert wakeup.wait(0) == b""
    wakeup.forget()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGUSR2
