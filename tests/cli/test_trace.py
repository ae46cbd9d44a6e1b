"""``laggard trace``: several ranks' last steps on one clock, from files of known skew and from ranks that train."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from laggard.shared import statefile
from laggard_cli.main import main
from tests.support.launch import PROGRAMS, Launcher

#: Microseconds.
STEP = 100_000


def written(folder: Path, rank: int, host: str = "a", *, ahead: int = 0, waits: bool = True, run: str = "r") -> Path:
    """Write what a rank on a host whose clock is ahead writes of ten steps, which all ranks end together."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
    ]
    for number in range(1, 11):
        began = number * STEP + ahead
        own = 40_000 + 1_000 * rank
        phases = [("forward", began, own)]
        if waits:
            phases += [("communication", began + own, 80_000 - own), ("optimizer", began + 80_000, 10_000)]
        for name, ts, dur in [("step", began, STEP), *phases]:
            event = {"ph": "X", "name": name, "cat": "laggard", "pid": rank, "tid": 0, "ts": ts, "dur": dur}
            events.append({**event, "args": {"step": number}} if name == "step" else event)
    path = folder / f"{run}-{rank}-{host}.trace.json"
    path.write_text(json.dumps({"traceEvents": events, "otherData": {"run": run, "host": host, "workload": ""}}))
    return path


def test_ranks_of_several_hosts_are_put_on_one_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host whose clock is ahead is moved back by that, and its ranks' collectives end when the others' do."""
    files = [
        written(tmp_path, 0),
        written(tmp_path, 1),
        written(tmp_path, 2, "b", ahead=3_500),
        written(tmp_path, 3, "b", ahead=3_500),
        written(tmp_path, 4, "c", ahead=-90_000),
    ]
    output = tmp_path / "joined.json"
    assert main(["trace", *map(str, files), "--output", str(output)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{output}: the last 10 steps of 5 ranks of r",
        "clock of a: the others are moved to it",
        "clock of b: +3.500 ms, half of 10 steps within 0.000 ms; taken off",
        "clock of c: -90.000 ms, half of 10 steps within 0.000 ms; taken off",
    ]
    joined = json.loads(output.read_text())
    assert joined["otherData"] == {"run": "r", "clock_ahead_us": {"a": 0, "b": 3_500, "c": -90_000}}
    ends: dict[int, list[int]] = {}
    for event in joined["traceEvents"]:
        if event["name"] == "communication":
            ends.setdefault(event["pid"], []).append(event["ts"] + event["dur"])
    assert ends == {rank: [number * STEP + 80_000 for number in range(1, 11)] for rank in range(5)}
    names = {event["pid"]: event["args"]["name"] for event in joined["traceEvents"] if event["name"] == "process_name"}
    assert names == {0: "rank 0, a", 1: "rank 1, a", 2: "rank 2, b", 3: "rank 3, b", 4: "rank 4, c"}
    assert sum(event["name"] == "step" for event in joined["traceEvents"]) == 50


def test_without_a_collective_no_clock_is_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing tells how far clocks are apart, that is said."""
    files = [written(tmp_path, 0, waits=False), written(tmp_path, 1, "b", ahead=3_500)]
    output = tmp_path / "joined.json"
    assert main(["trace", *map(str, files), "--output", str(output)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "clock of a: the others are moved to it",
        "clock of b: not compared, since no step has a collective that both hosts' ranks waited for; not moved",
    ]
    joined = json.loads(output.read_text())
    assert joined["otherData"]["clock_ahead_us"] == {"a": 0, "b": None}
    assert min(event["ts"] for event in joined["traceEvents"] if event["pid"] == 1 and "ts" in event) == STEP + 3_500


def test_ranks_that_train_are_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks on this host give their newest steps, and nothing but the trace is left behind."""
    end, output = tmp_path / "end", tmp_path / "steps.json"
    with Launcher(tmp_path) as launcher:
        ranks = [launcher.fork(PROGRAMS / "on_request.py", end, RANK=str(rank)) for rank in (0, 3)]
        folder = launcher.state_directory
        deadline = time.monotonic() + 60
        while True:
            files = list(folder.glob("*.state")) if folder.exists() else []
            if len(files) == 2 and all(statefile.read(file).steps >= 10 for file in files):
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert main(["trace", "--run", "test", "--state-dir", str(folder), "--output", str(output)]) == 0
        assert [path.suffix for path in folder.iterdir()] == [".state"] * 2
        end.touch()
        assert [process.wait(60) for process in ranks] == [0, 0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "asked ranks 0, 3 of test for the last steps"
    assert lines[-1].endswith(" steps of 2 ranks of test")
    events = json.loads(output.read_text())["traceEvents"]
    steps = {rank: [e["args"]["step"] for e in events if e["name"] == "step" and e["pid"] == rank] for rank in (0, 3)}
    assert all(numbers == list(range(numbers[0], numbers[0] + len(numbers))) for numbers in steps.values())
    assert min(map(len, steps.values())) >= 5
    assert {"forward", "backward", "optimizer"} <= {event["name"] for event in events}


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake has a line with the file, what is wrong and what to do, exit code 2, and leaves no output."""
    good, other = written(tmp_path, 0), written(tmp_path, 1, run="other")
    (tmp_path / "again").mkdir()
    again = written(tmp_path / "again", 0)
    output = tmp_path / "joined.json"
    bad = {
        "cut": '{"traceEvents": [',
        "profile": '{"traceEvents": []}',
        "strange": '{"traceEvents": [{"name": "step", "pid": 0, "ph": "X", "ts": "x", "dur": 1}], '
        '"otherData": {"run": "r", "host": "a"}}',
        "two": '{"traceEvents": [{"name": "a", "pid": 0}, {"name": "a", "pid": 1}], '
        '"otherData": {"run": "r", "host": "a"}}',
    }
    for name, text in bad.items():
        (tmp_path / name).write_text(text)

    def said(*arguments: object) -> str:
        assert main(["trace", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert not output.exists()
        (line,) = captured.err.splitlines()
        return line.removeprefix("laggard trace: error: ")

    to = ("--output", output)
    assert said(tmp_path / "none", *to) == f"{tmp_path}/none: No such file or directory"
    assert said(tmp_path / "cut", *to).startswith(f"{tmp_path}/cut: no JSON: ")
    no_trace = "no trace that a rank wrote of its last steps (laggard.dump_trace)"
    assert said(tmp_path / "profile", *to) == f"{tmp_path}/profile: {no_trace}"
    assert "an event must be one of a trace of steps, got " in said(tmp_path / "strange", *to)
    assert said(tmp_path / "two", *to).endswith("has the steps of 2 ranks, not of one; give the files that ranks wrote")
    assert said(good, other, *to) == "files of 2 runs, 'other', 'r'; give those of one"
    assert said(good, again, *to) == f"rank 0 is in {good} and {again}; give one of them"
    assert said(good, "--output", tmp_path / "none" / "x").endswith(f"there is no folder {tmp_path}/none")
    assert said(good, "--ranks", "0", *to) == "--ranks is for ranks that are asked, not for files"
    assert said("--state-dir", tmp_path / "none", *to).startswith(f"state folder {tmp_path}/none: ")
