"""``laggard replay`` of traces of torch's profiler: real ones of a job with a fault, and simulated ones of GPUs."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laggard_cli.kineto.stragglers import by_turns
from laggard_cli.main import main
from tests.support.kineto import Job, Work, write
from tests.support.launch import PROGRAMS
from tests.support.measured_once import MeasuredOnce

FAULTS = ("none", "data", "forward", "backward", "other")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> MeasuredOnce[Path]:
    """Folder with the traces of two ranks for each fault, of one job."""
    return MeasuredOnce(lambda _: _trace(tmp_path_factory.mktemp("traced")))


def _trace(folder: Path) -> Path:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAMS / "profiled.py"), str(folder), *FAULTS],
            env={**os.environ, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(90) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return folder


def replay(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what replay says of a run, as JSON."""
    assert main(["replay", "--json", *map(str, paths)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return run


def named(run: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return alert, rank and phase of each verdict."""
    return [(verdict["alert"], verdict["rank"], verdict["phase"]) for verdict in run["verdicts"]]


@pytest.mark.timed
@pytest.mark.parametrize("fault", FAULTS)
def test_a_real_trace_names_rank_and_phase(
    fault: str, traced: MeasuredOnce[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two ranks with gloo, the one that sleeps in a phase is named with it, and none where none sleeps."""
    expected = [] if fault == "none" else [("TrainingStraggler", "1", fault)]
    with traced.judged() as folder:
        run = replay(sorted((folder / fault).iterdir()), capsys)
        assert named(run) == expected
        assert run["run"] == fault
        assert run["facts"]["ranks_live"] == run["facts"]["ranks_expected"] == 2
        assert run["steps"] == 6
        for rank in run["ranks"]:
            phases = run["phases"][rank["rank"]]
            assert rank["own_seconds"] + rank["wait_seconds"] == pytest.approx(sum(phases.values()))
            assert phases["forward"] > 0.02
            assert phases["backward"] > 0.02


@pytest.mark.timed
def test_a_trace_of_one_rank_says_what_it_cannot_say(
    traced: MeasuredOnce[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its peers a rank's wait is no verdict, and the reason stands there."""
    with traced.judged() as folder:
        assert main(["replay", str(folder / "forward" / "trace0.json")]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 ranks" in said
    assert "no verdict: what 6 steps can show is within the limits" in said
    reason = "traces of 1 of 2 ranks: waiting for peers and transfer look the same from one"
    assert f"not judged: stragglers, data imbalance, communication-bound: {reason}" in said
    assert "not judged: idle GPU, exposed copies, host-bound: no kernel in the traces" in said


HEALTHY = Work()


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Job([HEALTHY] * 4), []),
        (Job([HEALTHY] * 4, transfer=15, begins=0.5), []),
        (Job([HEALTHY, HEALTHY, Work(backward=64), HEALTHY]), [("TrainingStraggler", "2", "backward")]),
        (Job([HEALTHY, Work(copy=25)]), [("TrainingStraggler", "1", "h2d")]),
        (Job([HEALTHY, Work(data=25)]), [("TrainingStraggler", "1", "data")]),
        (Job([HEALTHY, Work(forward=30, backward=60, update=6)]), [("TrainingStraggler", "1", "mixed")]),
        (Job([Work(data=30)] * 2), [("TrainingInputBound", "", "data")]),
        (Job([HEALTHY] * 2, transfer=25), [("TrainingCommunicationBound", "", "communication")]),
        (Job([Work(copy=15)] * 2), [("TrainingCopyBound", "", "h2d")]),
        (Job([Work(other=30)] * 2), [("TrainingHiddenSerialization", "", "other")]),
        (Job([Work(launch=5)] * 2), [("TrainingGpuUnderused", "", "")]),
        (Job([Work(copy=15)] * 2, marks=False), [("TrainingCopyBound", "", "h2d")]),
    ],
    ids=[
        "healthy",
        "hidden transfer",
        "slow backward",
        "slow copies",
        "slow loader",
        "slow GPU",
        "input",
        "transfer",
        "copies",
        "script",
        "launches",
        "copies, no marks",
    ],
)
def test_verdicts_on_gpus(
    job: Job, expected: list[tuple[str, str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each fault of a simulated job on GPUs is its own verdict, and nothing else is one."""
    assert named(replay(write(job, tmp_path, "json.gz"), capsys)) == expected


def test_phases_on_gpus_have_their_exact_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the device computes counts for the phase that launched it, a hidden collective for nothing."""
    run = replay(write(Job([HEALTHY] * 2, transfer=30, begins=0.5), tmp_path), capsys)
    phases = {name: round(1e3 * seconds, 1) for name, seconds in run["phases"]["0"].items()}
    # The collective begins with the second half of backward, which hides 20 ms of its 30.
    assert phases == {
        "data": 1.0,
        "h2d": 0.5,
        "forward": 20.0,
        "backward": 40.0,
        "optimizer": 4.0,
        "communication": 10.0,
        "other": 0.5,
    }
    device = run["device"]["0"]
    step = run["facts"]["step_seconds"]
    assert device["collectives_hidden"] * step == pytest.approx(0.020, rel=0.01)
    assert device["collectives_exposed"] * step == pytest.approx(0.010, rel=0.02)
    assert device["copies_exposed"] * step == pytest.approx(0.0005, rel=0.02)
    assert device["idle"] * step == pytest.approx(0.0015, rel=0.05)


@pytest.mark.parametrize("job", [Job([], waits=False), Job([], waits=False, marks=False)], ids=["marks", "no marks"])
def test_a_host_that_runs_ahead_of_its_device(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its marks stand in the midst of earlier steps; a step is what the device needs for what was launched in it."""
    ranks = [HEALTHY, Work(backward=64), HEALTHY]
    run = replay(write(replace(job, ranks=ranks), tmp_path), capsys)
    assert named(run) == [("TrainingStraggler", "1", "backward")]
    assert run["facts"]["step_seconds"] == pytest.approx(0.0905, rel=0.01)
    # The host fetches the next batch while the device works.
    assert {name: 1e3 * seconds for name, seconds in run["phases"]["0"].items()} == pytest.approx(
        {
            "data": 0,
            "h2d": 0.5,
            "forward": 20,
            "backward": 40,
            "optimizer": 4,
            "communication": 26,
            "other": 0,
        },
        abs=0.2,
    )


def delay(paths: list[Path], late: Sequence[int], milliseconds: int) -> None:
    """Have one rank be late with its batch in each step; the others wait that much longer for it."""
    for rank, path in enumerate(paths):
        content = json.loads(path.read_text())
        shift = 0.0
        for event in sorted(content["traceEvents"], key=lambda event: (event["ts"], -event.get("dur", 0))):
            step = int(event["ts"] // 68_000)
            event["ts"] += shift
            if event["name"].startswith("enumerate" if late[step] == rank else "ncclDev"):
                event["dur"] += 1000 * milliseconds
                shift += 1000 * milliseconds
            elif event["name"].startswith("ProfilerStep"):
                event["dur"] += 1000 * milliseconds
        path.write_text(json.dumps(content))


def test_a_different_rank_is_slow_in_each_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the slowest rank roams, it is the data and no rank."""
    paths = write(Job([HEALTHY] * 4, steps=12), tmp_path)
    delay(paths, [0, 1, 2, 3] * 3, 40)
    assert named(replay(paths, capsys)) == [("TrainingDataImbalance", "", "")]


def test_ranks_that_may_take_turns_are_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two ranks one is slower in four of five steps by chance, and that is said; nine of ten are enough."""
    assert by_turns(4, 5, 2) == pytest.approx(0.375)
    assert by_turns(9, 10, 2) == pytest.approx(2 * 11 / 1024)
    paths = write(Job([HEALTHY] * 2, steps=5), tmp_path)
    delay(paths, [1, 1, 0, 1, 1], 80)
    run = replay(paths, capsys)
    assert named(run) == []
    assert run["not_judged"][0] == {
        "what": "rank 1 as a straggler",
        "why": "1.64 times as long as its peers, in 4 of 5 steps: ranks that take turns lead as often with probability "
        "0.38; trace more",
    }
    paths = write(Job([HEALTHY] * 2, steps=10), tmp_path)
    delay(paths, [1] * 4 + [0] + [1] * 5, 80)
    assert named(replay(paths, capsys)) == [("TrainingStraggler", "1", "data")]


def test_a_hiccup_does_not_hide_a_straggler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step of a second makes the mean so long that no other step looks slow beside it."""
    paths = write(Job([HEALTHY, Work(backward=90)], steps=8), tmp_path)
    content = json.loads(paths[1].read_text())
    ends = [event for event in content["traceEvents"] if event["name"].startswith("ProfilerStep")]
    content["traceEvents"] = [event for event in content["traceEvents"] if event["ts"] < ends[-2]["ts"]]
    for event in content["traceEvents"]:
        late = event["ts"] >= ends[3]["ts"] + 1
        event["ts"] += 1e6 * late
    paths[1].write_text(json.dumps(content))
    assert named(replay(paths, capsys)) == [("TrainingStraggler", "1", "backward")]


def test_a_score_that_may_be_chance_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With five steps 1.3 times is within chance as the rules reckon it, and that is said."""
    slow = Job([HEALTHY, Work(backward=60)], steps=5)
    run = replay(write(slow, tmp_path), capsys)
    assert named(run) == []
    straggler, imbalance, *_ = run["not_judged"]
    assert imbalance == {"what": "data imbalance", "why": "5 steps; it needs 8"}
    assert straggler == {
        "what": "rank 1 as a straggler",
        "why": "1.30 times as long as its peers, which over 5 steps may be chance up to 1.36; trace more",
    }


def test_stages_of_a_pipeline_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first stage has twice the work by design; inside the second one rank is slow, and it alone is named."""
    first, second, slow = Work(forward=60), Work(forward=20), Work(forward=40)
    run = replay(write(Job([first, first, second, slow], stages=2), tmp_path), capsys)
    assert named(run) == [("TrainingStraggler", "3", "forward")]
    reason = "ranks are compared inside their peer groups alone: pp-0, pp-1"
    assert {"what": "slow pipeline stages, data imbalance", "why": reason} in run["not_judged"]


def test_a_bubble_is_not_called_transfer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What all ranks wait is the transfer of a plain run, and not said to be that of a pipeline."""
    plain = replay(write(Job([HEALTHY] * 4, transfer=100), tmp_path), capsys)
    assert named(plain) == [("TrainingCommunicationBound", "", "communication")]
    staged = replay(write(Job([HEALTHY] * 4, transfer=100, stages=2), tmp_path), capsys)
    assert named(staged) == []
    assert "communication_floor_share" not in staged["facts"]
    reason = "the least wait of a pipeline is its bubble, and not the transfer alone"
    assert {"what": "communication-bound", "why": reason} in staged["not_judged"]


def test_missing_ranks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks without a trace are said, and transfer is not judged, since they may be the ones that are waited for."""
    paths = write(Job([HEALTHY] * 4, transfer=25), tmp_path)
    run = replay(paths[1:3], capsys)
    assert named(run) == []
    assert run["ranks_absent"] == [0, 3]
    assert run["not_judged"][0] == {
        "what": "the ranks without a trace, communication-bound",
        "why": "no trace of rank 0, 3: they may be the slow ones",
    }


def test_a_share_is_one_of_the_ranks_that_were_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of four ranks that wait for data do not say it of all."""
    run = replay(write(Job([Work(data=30)] * 4), tmp_path)[:2], capsys)
    (verdict,) = run["verdicts"]
    assert verdict["alert"] == "TrainingInputBound"
    assert "even on the ranks that are supplied best, of the 2 traced of 4 (limit 20%)" in verdict["description"]


def test_the_truth_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A truth file scores traces as it scores recordings; the run is called as the folder is."""
    paths = write(Job([HEALTHY, Work(backward=70)]), tmp_path)
    truth = tmp_path / "truth.yaml"
    wanted = "{alert: TrainingStraggler, ranks: [0], phase: backward}"
    truth.write_text(f"runs: {{{tmp_path.name}: {{expected: [{wanted}]}}}}")
    assert main(["replay", "--truth", str(truth), *map(str, paths)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert f"  missed     TrainingStraggler, run {tmp_path.name}, rank 0" in said
    assert f"  wrong rank TrainingStraggler, run {tmp_path.name}, rank 1" in said


def _text(folder: Path, content: str | bytes, name: str = "rank0.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


EMPTY = '{"schemaVersion": 1, "traceEvents": ['
EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}'
ENDS = "ends in the middle, so it was not written to its end; what is missing cannot be told: take another"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (EMPTY + EVENT + ", ", ENDS),
        (gzip.compress((EMPTY + EVENT + "]}").encode())[:-9], ENDS),
        (gzip.compress(EMPTY.encode() * 9)[:-8] + b"12345678", "the compressed file is damaged: CRC check failed"),
        (EMPTY + EVENT + "]} {}", "'{}' stands behind the end of the trace: take a file of one trace"),
        (gzip.compress(f"[{EVENT}]".encode()) * 2, "'[{"),
        (EMPTY + "{'ph': 1}" + " " * 99 + "]}", "no JSON after 0 events: Expecting property name"),
        (EMPTY + "[" * 100_000 + "]}", "no JSON after 0 events: nested too deeply"),
        (EMPTY + EVENT.replace("1.0", "9" * 5000) + "]}", "no JSON after 0 events: a number has too many digits"),
        (
            EMPTY + EVENT.replace("cpu_op", "python_function") + "]}",
            "no operators and no kernels of torch among 1 events; was torch's profiler on?",
        ),
        (EMPTY + "]}", "no trace of torch's profiler: it has no traceEvents"),
        ('{"schemaVersion": 1, "a": 1}', "no trace of torch's profiler: it has no traceEvents"),
        (EMPTY + EVENT.replace("1.0", "NaN") + "]}", "event 1 must be one of torch's, got "),
        (EMPTY + "5]}", "event 1 must be one of torch's, got '5'"),
        (EMPTY + EVENT + "]}", "no steps: neither a ProfilerStep# mark (call step() of the profiler in the loop)"),
        (
            '{"schemaVersion": 1, "distributedInfo": {"rank": "x"}, "traceEvents": [' + EVENT + "]}",
            "distributedInfo.rank",
        ),
    ],
    # Names of their own: what is compressed differs from process to process.
    ids=[
        "cut",
        "compressed-cut",
        "compressed-damaged",
        "two",
        "two-compressed",
        "single-quotes",
        "deep",
        "digits",
        "python-only",
        "empty",
        "other",
        "not-a-number",
        "no-event",
        "no-steps",
        "bad-rank",
    ],
)
def test_what_is_no_trace_is_one_line(
    content: str | bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the file and what is wrong with it; the exit code is 2."""
    path = _text(tmp_path, content)
    assert main(["replay", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"laggard replay: error: {path}: {expected}")
    assert captured.err.count("\n") == 1


def test_traces_that_do_not_belong_together_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files of one rank, of different runs, of different times, without a rank, and beside a recording."""
    (tmp_path / "other").mkdir()
    first, second = write(Job([HEALTHY] * 2), tmp_path)
    other, *_ = write(Job([HEALTHY] * 3), tmp_path / "other")
    late = _text(tmp_path, re.sub("1790000000", "1790000100", second.read_text()), "late.json")
    nameless = [_text(tmp_path, re.sub('"rank": ', '"r": ', first.read_text()), f"{name}.json") for name in "ab"]
    beyond = _text(tmp_path, re.sub('"rank": 0', '"rank": 7', first.read_text()), "beyond.json")
    recording = _text(tmp_path, "{}", "steps.jsonl")
    for paths, expected in (
        ([first, first], f"rank 0 is in {first} and {first}; give one of them"),
        ([other, second], f"traces of different runs: {other} is of 3 ranks, {second} of 2"),
        ([first, late], f"traces of different runs or times: {first} and {late} are 99 s apart; give traces"),
        ([beyond], f"{beyond}: distributedInfo.rank must be below its world_size of 2, got 7"),
        (nameless, f"{nameless[0]}: does not say its rank: it has no distributedInfo; call the file rank0.json"),
        ([first, recording], f"{first} is a trace of torch's profiler and {recording} is not; give one kind"),
    ):
        assert main(["replay", *map(str, paths)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"laggard replay: error: {expected}")
        assert captured.err.count("\n") == 1


def test_a_pipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it is must be known before it is read; waiting for it would not end."""
    os.mkfifo(pipe := tmp_path / "rank0.json")
    assert main(["replay", str(pipe)]) == 2
    assert capsys.readouterr().err.startswith(f"laggard replay: error: {pipe}: must be a file or a folder")


def test_memory_and_time_are_bounded(tmp_path: Path) -> None:
    """A trace of 8 MB takes less than 15 MB beyond the start, where its objects would take 33, and a few seconds."""
    (path,) = write(Job([Work(launch=0.01)], steps=10, kernels=400), tmp_path)
    assert path.stat().st_size > 8e6
    # VmHWM begins anew with a program; ru_maxrss goes on from the process that started it.
    code = (
        "import sys, time; from pathlib import Path; from laggard_cli.replay import command;"
        "from laggard_cli.kineto.run import read_run; from laggard_cli.kineto.verdicts import judge;"
        "most = lambda: int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]);"
        "before, began = most(), time.process_time();"
        "judge(read_run([Path(sys.argv[1])]));"
        "print(most() - before, time.process_time() - began)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True)
    kilobytes, seconds = map(float, done.stdout.split())
    assert kilobytes < 15_000
    # 100 MB in 30 s would be 2.5 s.
    assert seconds < 2.5
