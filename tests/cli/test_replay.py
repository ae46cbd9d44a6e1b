"""``laggard replay``: recordings in both forms, judged by the shipped rules in a real Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laggard_cli.main import main
from laggard_cli.replay.command import TooFastError, files_of, play, read
from laggard_cli.replay.server import pace_of, sample
from laggard_cli.replay.steps import parse_step, recording_of
from laggard_cli.replay.truth import Expected, Fired, Outcome, Truth, judge
from tests.support.waiting import until

RUN = "recorded"

#: Milliseconds of each phase of a healthy rank's step.
WORK = {"data": 10, "forward": 50, "backward": 100, "optimizer": 10}


def write_steps(folder: Path, slow: int, factor: float) -> list[Path]:
    """Write the steps of four synchronous ranks of which one is slow in its forward pass, as laggard dumps them."""
    chance = random.Random(7)
    files = [(folder / f"rank-{rank}.jsonl").open("w") for rank in range(4)]
    now = 1_700_000_000_000_000_000
    for step in range(200):
        own = []
        for rank in range(4):
            phases = {name: round(1e6 * length * chance.gauss(1, 0.05)) for name, length in WORK.items()}
            if rank == slow:
                phases["forward"] = round(phases["forward"] * factor)
            own.append(phases)
        duration = max(sum(phases.values()) for phases in own) + 20_000_000
        for rank, phases in enumerate(own):
            phases["communication"] = duration - sum(phases.values())
            line = {
                "run": RUN,
                "rank": rank,
                "step": step,
                "started_unix_ns": now,
                "duration_ns": duration,
                "excluded": "warmup" if step < 3 else None,
                "phases_ns": phases,
                "intervals": [],
            }
            files[rank].write(json.dumps(line) + "\n")
        now += duration
    for file in files:
        file.close()
    return [Path(file.name) for file in files]


@pytest.mark.timed
def test_steps_name_the_slow_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Forty seconds of steps as JSON lines suffice to name a slow rank and its phase, and the truth agrees."""
    recordings = write_steps(tmp_path, slow=2, factor=2.2)
    truth = tmp_path / "truth.yaml"
    truth.write_text(f"runs: {{{RUN}: {{expected: [{{alert: TrainingStraggler, ranks: [2], phase: forward}}]}}}}")
    assert main(["replay", *map(str, recordings), "--truth", str(truth), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    (run,) = found["runs"]
    (verdict,) = run["verdicts"]
    assert {name: verdict[name] for name in ("alert", "rank", "phase")} == {
        "alert": "TrainingStraggler",
        "rank": "2",
        "phase": "forward",
    }
    assert "Rank 2 of run recorded takes" in verdict["description"]
    assert [(each["kind"], each["phase_right"]) for each in found["score"]] == [("found", True)]
    assert run["ranks"][0]["rank"] == "2"
    assert run["ranks"][0]["own_seconds"] == pytest.approx(0.23, rel=0.1)
    assert found["stretch"] == pytest.approx(1500 / found["seconds"])
    assert "stretched" in said.err


def test_openmetrics_keep_gaps_and_growth(tmp_path: Path) -> None:
    """Counters grow evenly between samples, gauges keep their value, and what has no sample for long is gone."""
    path = tmp_path / "run.om"
    lines = [f'training_steps_total{{training_run="r",job="j"}} {10 * i} {1000 + 15 * i}.0' for i in range(10)]
    lines += [f'training_loss{{training_run="r\\"s"}} {i} {1000 + 15 * i} # {{trace="1"}} 1 2' for i in (0, 1, 2, 9)]
    path.write_text("# TYPE training_steps counter\n" + "\n".join(lines) + "\n# EOF\n")
    recording = read([path])
    steps, loss = recording.series
    assert (steps.name, steps.labels) == ("training_steps_total", (("training_run", "r"),))
    assert loss.labels == (("training_run", 'r"s'),)
    assert sample(steps, 1022.5) == pytest.approx(15)
    assert [sample(loss, at) for at in (999, 1000, 1016, 1067, 1068)] == [None, 0, 1, 2, None]
    assert pace_of(recording).stretch == pytest.approx(1500 / 135)


def test_what_promtool_dumps_is_read(tmp_path: Path) -> None:
    """A stale marker ends a series until its next value, a name in quotes is somebody else's, its labels are read."""
    path = tmp_path / "dump.om"
    path.write_text(
        'training_loss{training_run="r"} 1 1000\ntraining_loss{training_run="r"} NaN 1015\n'
        'training_loss{training_run="r"} 2 1030\ntraining_loss{training_run="gone"} NaN 1000\n'
        '{"http.server.duration","k8s.pod"="x"} 5 1000\nhttp.client.requests{a="b"} 5 1000\n'
        '{"training_steps_total",training_run="r","k8s.pod.name"="x"} 5 1000\n'
        '{__name__="up",job="j"} 1 1000\n'
    )
    recording = read([path])
    assert [(series.name, dict(series.labels)) for series in recording.series] == [
        ("training_loss", {"training_run": "r"}),
        ("training_steps_total", {"training_run": "r", "k8s_pod_name": "x"}),
        ("up", {}),
    ]
    assert [sample(recording.series[0], at) for at in (1000, 1014, 1015, 1029, 1030)] == [1, 1, None, None, 2]


def test_a_replay_that_is_too_fast_is_an_error(tmp_path: Path) -> None:
    """Where scrapes are missing, nothing is judged: a machine that cannot keep up calls no run healthy."""
    recording = read(write_steps(tmp_path, slow=2, factor=2.2))
    with pytest.raises(TooFastError, match=r"too busy for the replay: \d+% of the (scrapes|evaluations) are missing"):
        play(recording, replace(pace_of(recording), tick=0.001))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_a_replay(tmp_path: Path, number: signal.Signals) -> None:
    """However it ends, its Prometheus ends too; on request its folder goes as well."""
    files = write_steps(tmp_path, slow=2, factor=2.2)
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "laggard_cli.main", "replay", *map(str, files)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as replay:
        children = Path(f"/proc/{replay.pid}/task/{replay.pid}/children")
        until(lambda: b"prometheus" in b"".join(map(_command, children.read_text().split())), "no Prometheus")
        (server,) = children.read_text().split()
        replay.send_signal(number)
        assert replay.wait(20) == (130 if number is signal.SIGTERM else -number)
        assert replay.stderr is not None
        assert b"Traceback" not in replay.stderr.read()
    until(lambda: b"prometheus" not in _command(server), "Prometheus goes on")
    assert list((tmp_path / "temporary").iterdir()) == [] or number is signal.SIGKILL


def _command(pid: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


STEPS: list[tuple[int, str | None]] = [(1, "warmup"), (2, "first_batch"), (3, None), (4, "first_batch")]


def test_excluded_steps_keep_their_reasons() -> None:
    """So a run whose steps are all excluded says why it is not judged, as a live one does."""
    lines = [step_line(step=number, started_unix_ns=10**18 + number * 10**8, excluded=why) for number, why in STEPS]
    made = recording_of({("r", 0): [parse_step(line) for line in lines]})
    left_out = {
        dict(series.labels)["training_reason"]: list(series.values)
        for series in made.series
        if series.name == "training_steps_excluded_total"
    }
    assert left_out == {"warmup": [0, 1, 1, 1, 1], "first_batch": [0, 0, 1, 1, 2]}


def test_only_the_end_of_a_line_ends_one(tmp_path: Path) -> None:
    """A mark of the byte order is none of it, and what else Unicode ends lines with may stand in a label."""
    path = tmp_path / "dump.om"
    line = 'training_loss{training_run="r\u2028s"} 1 '
    path.write_bytes(f"\ufeff{line}1000\r\n{line}1015\r\n# EOF\r\n".encode())
    assert [dict(series.labels) for series in read([path]).series] == [{"training_run": "r\u2028s"}]


def step_line(**changes: Any) -> str:
    """A step as ``dump_trace`` writes it, with some values changed."""
    step = {"run": "r", "rank": 0, "step": 1, "started_unix_ns": 10**18, "duration_ns": 10**8, "phases_ns": {"data": 1}}
    return json.dumps({**step, **changes}) + "\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.om",
            "training_steps_total 5\n",
            "line 1: training_steps_total needs a value and a time in seconds, not '5'",
        ),
        ("a.om", 'training_steps_total{training_run="r 5 6\n', "line 1: a label's value does not end"),
        ("a.om", "# EOF\nup 1 2\n", "no training_* series; docs/replay.md says what a recording holds"),
        ("a.om", '{"training.steps"} 1 2\n', "no training_* series (training.* is there: try a server that translates"),
        (
            "a.om",
            "training_steps_total 5 1700000000\n",
            "all samples are of one time; a recording needs at least a few",
        ),
        (
            "a.om",
            'training_steps_total{training_run="r"} 5 1700000000000\n',
            "line 1: the time of training_steps_total must be in seconds, got '1700000000000'; Prometheus' text format",
        ),
        ("a.jsonl", '{"run": "r", "rank": "0"}\n', "line 1: 'rank' must be of type int"),
        (
            "a.jsonl",
            '{"metric": {"__name__": "training_steps_total"}, "values": [1], "timestamps": [1700000000000]}\n',
            "line 1: no step: it has 'metric', 'values', 'timestamps' and not 'run', 'rank'",
        ),
        (
            "a.txt",
            '{__name__="training_steps_total", training_run="r"} 5 1700000000000\n',
            "line 1: the time of training_steps_total must be in seconds, got '1700000000000'",
        ),
        (
            "a.json",
            '{"otherData": {"run": "r"}, "traceEvents": []}\n',
            "a trace for a viewer; a dump to a path that ends in .jsonl can be",
        ),
        ("a.om", "\n", "the file is empty"),
        ("a.nsys-rep", "QD\0\1", "neither a recording nor a trace of torch's profiler"),
        ("a.perfetto-trace", "\n\x10\x08\1\n", "neither a recording nor a trace of torch's profiler"),
        ("a.json", '[{"Name": "gemm", "Start (ns)": 1}]', "neither a recording nor a trace of torch's profiler"),
        ("a.om", 'training_steps_total{training_run="r"} NaN 1700000000\n', "there is no sample with a value in it"),
        ("a.jsonl", '{"a": ' + "[" * 100_000 + "\n", "line 1: no JSON object"),
        ("a.jsonl", step_line(phases_ns={"data": "x"}), "phase 'data' must be a number of nanoseconds, got 'x'"),
        (
            "a.jsonl",
            step_line(phases_ns={"data": float("nan")}),
            "phase 'data' must be a number of nanoseconds, got 'nan'",
        ),
        ("a.jsonl", step_line(phases_ns={"data": -1}), "phase 'data' must be a number of nanoseconds, got '-1'"),
        ("a.jsonl", step_line(duration_ns=10**25), "'duration_ns' must be 0 to 604799999999999, got 1000000000"),
        ("a.jsonl", step_line(started_unix_ns=-1), "'started_unix_ns' must be 0 to 9223372036854775807, got -1"),
        ("a.jsonl", step_line(rank=-1), "'rank' must be 0 to 1048575, got -1"),
        ("a.jsonl", step_line(excluded=7), "'excluded' must be a reason or null"),
    ],
)
def test_a_wrong_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    """What is no recording is told in one line, with the place."""
    path = tmp_path / name
    path.write_text(text)
    assert main(["replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"laggard replay: error: {path}")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: {other: {}}", "run 'other' is not in the recording, which has r"),
        ("runs: {r: {expected: [{ranks: [1]}]}}", "r, expected: 'alert' is missing"),
        ("runs: {r: {expect: []}}", "r: no field 'expect'; there are expected, allowed"),
        ("runs: [", "while parsing"),
    ],
)
def test_a_wrong_truth_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    """So is what is no truth about the recording."""
    recording, truth = tmp_path / "a.om", tmp_path / "truth.yaml"
    recording.write_text("".join(f'training_loss{{training_run="r"}} 1 {i}\n' for i in range(3)))
    truth.write_text(text)
    assert main(["replay", str(recording), "--truth", str(truth)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"laggard replay: error: --truth {truth}: ")
    assert message in error
    assert error.count("\n") == 1


def test_the_score_tells_every_way_to_be_wrong() -> None:
    """Found with its delay, missed, another rank, and an alert for which there is no reason; info counts nothing."""
    slow = Expected("TrainingStraggler", frozenset({"1", "2"}), "data", begin=100)
    fired = [
        Fired("TrainingStraggler", "warning", "r", "1", "data", 250),
        Fired("TrainingStraggler", "warning", "r", "3", "data", 250),
        Fired("TrainingStraggler", "warning", "r", "1", "data", 10, 50),
        Fired("TrainingInputBound", "warning", "r", "", "data", 300),
        Fired("TrainingTelemetryDown", "warning", "r", "1"),
        Fired("TrainingNote", "info", "r"),
        Fired("TrainingStalled", "critical", "other"),
    ]
    assert judge(Truth("r", (slow,), frozenset({"TrainingTelemetryDown"})), fired) == [
        Outcome("found", "TrainingStraggler", "r", "1", delay=150),
        Outcome("missed", "TrainingStraggler", "r", "2"),
        Outcome("wrong rank", "TrainingStraggler", "r", "3"),
        Outcome("false", "TrainingStraggler", "r", "1"),
        Outcome("false", "TrainingInputBound", "r"),
    ]


def test_a_folder_is_its_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each recording in it is read, and nothing else; an empty folder is one line."""
    assert main(["replay", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"laggard replay: error: {tmp_path}: there is no recording in the folder ("
    )
    names = ("rank-1.jsonl", "rank-0.jsonl", "trace.json.gz", "server.om")
    for name in (*names, "README.md", "state.laggard"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    (tmp_path / "more.jsonl").mkdir()
    assert [file.name for file in files_of(tmp_path)] == sorted(names)
    assert files_of(tmp_path / "README.md") == [tmp_path / "README.md"]
    assert main(["replay", str(tmp_path / "more.jsonl")]) == 2
