"""``laggard gate``: equal runs pass, slower ones fail and say where, and what cannot be decided or read says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml

from lab.evaluation.gate import cell, simulate
from laggard_cli.gate.baseline import load, save
from laggard_cli.gate.measured import Measured, joined
from laggard_cli.gate.statistics import MIN_VALUES, compare, correlation_time, holm
from laggard_cli.gate.student import quantile, tail
from laggard_cli.gate.verdict import Outcome, judge
from laggard_cli.gate.view import markdown
from laggard_cli.main import main
from tests.cli.gate_runs import BEGIN, LENGTH, lines_of, openmetrics, prometheus_with, write_run
from tests.support.launch import PROGRAMS, Launcher


def outcomes_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``--json`` printed."""
    return json.loads(capsys.readouterr().out)


def test_the_test_counts_independent_steps() -> None:
    """Correlated values count as fewer, and a shift is found where it is and as large as it is."""
    chance = np.random.default_rng(1)
    white = chance.standard_normal(4000)
    wave = white.copy()
    for step in range(1, len(wave)):
        wave[step] += 0.8 * wave[step - 1]
    # (1 + 0.8) / (1 - 0.8) = 9
    assert correlation_time(wave) == pytest.approx(9, rel=0.25)
    assert correlation_time(white) == pytest.approx(1, abs=0.2)
    assert correlation_time(np.ones(50)) == 1
    # A pause once in a while is no resemblance of its neighbours.
    pauses = np.zeros(600)
    pauses[::60] = 1
    assert correlation_time(pauses) < 1.5
    same = compare(wave, wave)
    assert (same.shift, same.superiority) == (0, 0.5)
    assert same.p == pytest.approx(0.5, abs=0.01)
    assert same.block == pytest.approx(33, rel=0.3)
    shifted = compare(white, white + 0.5)
    assert shifted.shift == pytest.approx(0.5, abs=0.05)
    assert shifted.shift < shifted.upper < 0.7
    assert shifted.p < 1e-6
    # Ranks cannot tell much of a series that drifts all the time; its spread still bounds what may be drift.
    drift = 100 + np.linspace(0, 1, 60)
    found = compare(drift, drift + 5)
    assert (found.shift, found.freedom) == (5, 4)
    assert 5 < found.upper < 6
    assert 1e-6 < found.p < 2.5e-3
    assert compare(drift, drift).p == pytest.approx(0.5)
    # From tables of Student's distribution.
    assert [quantile(chance, freedom) for chance, freedom in ((0.95, 4), (0.995, 10))] == pytest.approx(
        [2.132, 3.169], abs=1e-3
    )
    assert tail(2.132, 4) == pytest.approx(0.05, abs=1e-4)
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])


def test_equal_runs_pass_and_slower_ones_are_found() -> None:
    """A small part of the evaluation: with correlated noise and checkpoints no equal run fails, and 5 % is found."""
    for steps, noise, decay in ((256, 0.05, 0.0), (1024, 0.05, 0.6)):
        found = cell(20, steps, noise, decay, seed=3)
        assert found.equal == {"pass": 20}
        assert found.slow == {"fail": 20}


def test_what_few_steps_take_is_found() -> None:
    """Pauses in one step of fifty, and saves that take twice as long, fail by name; the usual step passes."""
    chance = np.random.default_rng(4)
    without, same = (simulate(chance, 2048, 0.05, 0.0) for _ in range(2))
    paused = simulate(chance, 2048, 0.05, 0.0, pauses=(0.02, 3.0))
    longer = replace(same, phases={**same.phases, "checkpoint": 2 * same.phases["checkpoint"]})
    failed = [
        [each.name for each in judge(without, run, 0.05).comparisons if each.outcome is Outcome.FAIL]
        for run in (same, paused, longer)
    ]
    assert failed == [[], ["pauses"], ["checkpoint"]]


def test_several_recordings_know_the_noise_of_the_machine() -> None:
    """Where whole runs differ, one of each fails for nothing, several do not; where they hardly do, 5 % is found."""

    def recorded(chance: np.random.Generator, number: int, apart: float, slow: float = 1.0) -> list[Measured]:
        runs = [simulate(chance, 40, 0.02, 0.0) for _ in range(number)]
        factors = slow * np.exp(apart * chance.standard_normal(number))
        return [
            replace(
                run,
                step=run.step * factor,
                phases={name: series * factor for name, series in run.phases.items()},
                throughput={"steps": run.throughput["steps"] * factor},
            )
            for run, factor in zip(runs, factors, strict=True)
        ]

    single, several, found = [], [], []
    for seed in range(20):
        chance = np.random.default_rng(seed)
        one, two = recorded(chance, 3, 0.1), recorded(chance, 3, 0.1)
        single.append(judge(one[0], two[0], 0.05).outcome)
        several.append(judge(joined("a", one), joined("b", two), 0.05).outcome)
        quiet = joined("a", recorded(chance, 5, 0.005)), joined("b", recorded(chance, 3, 0.005, slow=1.05))
        found.append(judge(*quiet, 0.05).outcome)
    assert single.count(Outcome.FAIL) > 5
    assert several.count(Outcome.FAIL) <= 1
    assert found.count(Outcome.FAIL) >= 19


def test_recordings_are_read_and_saved_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several after one flag are one run, a saved baseline keeps them apart, and they must be alike."""
    runs = [write_run(tmp_path / f"r{seed}", steps=40, seed=seed) for seed in range(4)]
    kept = tmp_path / "kept.json"
    assert main(["gate", "--candidate", *map(str, runs[:3]), "--save", str(kept)]) == 0
    assert load(kept).recordings == (37, 37, 37)
    capsys.readouterr()
    assert main(["gate", "--baseline", str(kept), "--candidate", str(runs[3]), "--json"]) == 0
    step = outcomes_of(capsys)["comparisons"][0]
    # As the medians of the four recordings differ, by far less than the limit.
    assert abs(step["change"]) < 0.01
    odd = write_run(tmp_path / "odd", steps=40, ranks=4)
    line = error_of(capsys, "--candidate", runs[0], odd, "--save", kept)
    assert (
        line == f"--candidate {runs[0]} has 2 ranks, --candidate {odd} 4; only runs of the same number of ranks can be "
        "compared"
    )


def test_a_shift_within_half_the_limit_passes_however_sure_it_is() -> None:
    """Two per cent are significant with little noise, and no regression; with a limit of 3 % they are one."""
    one, two = (simulate(np.random.default_rng(seed), 1000, 0.01, 0.0) for seed in (1, 2))
    two = replace(two, step=two.step * (1.02 * float(np.median(one.step) / np.median(two.step))))
    step = judge(one, two, 0.05).comparisons[0]
    assert step.change == pytest.approx(0.02, abs=0.005)
    assert step.p is not None
    assert step.p < 1e-6
    assert step.outcome is Outcome.PASS
    assert judge(one, two, 0.03).comparisons[0].outcome is Outcome.FAIL


def test_a_slower_run_fails_everywhere_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, the step and its phase named in text, JSON, Markdown and JUnit; and no baseline is made of it."""
    baseline = write_run(tmp_path / "a")
    slower = write_run(tmp_path / "b", slow=1.12, seed=2, memory=(1 << 30) + (1 << 29))
    summary, report, kept = tmp_path / "summary.md", tmp_path / "gate.xml", tmp_path / "kept.json"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    command = ["gate", "--baseline", str(baseline), "--candidate", f"{slower}/rank-*.jsonl", "--save", str(kept)]
    assert main([*command, "--markdown", str(summary), "--junit", str(report), "--json"]) == 1
    found = outcomes_of(capsys)
    assert (found["outcome"], found["correction"], found["limit"]) == ("fail", "holm", 0.05)
    by_name = {each["name"]: each for each in found["comparisons"]}
    assert {name: each["outcome"] for name, each in by_name.items()} == {
        "step": "fail",
        "throughput": "fail",
        "pauses": "pass",
        "backward": "fail",
        "checkpoint": "not decided",
        "data": "pass",
        "forward": "pass",
        "optimizer": "pass",
        "device_peak": "fail",
    }
    # 12 of 170 ms.
    assert by_name["step"]["change"] == pytest.approx(12 / 170, rel=0.05)
    assert by_name["backward"]["change"] == pytest.approx(12 / 170, rel=0.05)
    assert by_name["step"]["baseline"] == pytest.approx(0.170, rel=0.01)
    assert by_name["device_peak"]["change"] == pytest.approx(0.5)
    assert not kept.exists()

    text = summary.read_text()
    assert text.startswith(
        "before\n### ❌ laggard gate: fail\n\nworse in step, throughput, backward, device\\_peak: step +7."
    )
    assert "| backward | 100 ms | 112 ms | +7." in text
    suite = ET.parse(report).getroot()
    assert suite.attrib == {"tests": "9", "failures": "4", "errors": "0", "skipped": "1"}
    failed = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    backward = failed["backward"]
    assert backward is not None
    assert backward.get("message", "").startswith("significantly worse, by 7.")
    assert failed["data"] is None

    for width in (44, 76, 88):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(command) == 1
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        assert any(
            line.split()[0] == "backward" and line.rstrip().endswith("✗ fail") for line in lines[3:] if line.strip()
        )
    assert main(command) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("✗ fail worse in step, throughput, backward, device_peak: step +7.")
    assert "Mann-Whitney on blocks, p < 0.005 after Holm's correction" in told
    assert "one recording of each does not show how much equal runs differ" in told


def test_an_equal_run_passes_and_becomes_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A saved baseline compares like the recording that it was made of, and a faster run passes and may replace it."""
    first, kept, next_ = write_run(tmp_path / "a"), tmp_path / "kept.json", tmp_path / "next.json"
    assert main(["gate", "--candidate", str(first), "--save", str(kept)]) == 0
    assert capsys.readouterr().out == f"197 steps of 2 ranks of recorded in {kept}\n"
    equal = write_run(tmp_path / "b", seed=2)
    verdicts: list[Any] = []
    for baseline in (first, kept):
        assert main(["gate", "--baseline", str(baseline), "--candidate", str(equal), "--json"]) == 0
        verdicts.append(outcomes_of(capsys))
    changes = [[each["change"] for each in verdict["comparisons"]] for verdict in verdicts]
    assert changes[0] == pytest.approx(changes[1], abs=1e-5)
    faster = write_run(tmp_path / "c", slow=0.8, seed=3)
    assert main(["gate", "--baseline", str(kept), "--candidate", str(faster), "--save", str(next_)]) == 0
    assert load(next_).step.mean() == pytest.approx(0.150, rel=0.01)


def test_too_few_steps_are_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and how many steps are needed, both for very few steps and for noise; JUnit calls it an error."""
    few = write_run(tmp_path / "few", steps=3 + MIN_VALUES - 1)
    report = tmp_path / "gate.xml"
    command = ["gate", "--baseline", str(few), "--candidate", str(few)]
    assert main([*command, "--junit", str(report), "--save", str(tmp_path / "kept.json")]) == 3
    assert not (tmp_path / "kept.json").exists()
    assert "cannot decide: needs about 30 steps of each run, there are 29" in " ".join(capsys.readouterr().out.split())
    suite = ET.parse(report).getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "2")
    noisy = write_run(tmp_path / "noisy", steps=60, ranks=1, noise=0.3)
    assert main(["gate", "--baseline", str(noisy), "--candidate", str(noisy), "--json"]) == 3
    found = outcomes_of(capsys)
    assert found["outcome"] == "not decided"
    # Noise of 0.3 * sqrt(100² + 50² + 2 * 10²) / 170 = 20 % needs 2 * 0.2² * (4.45 / 0.05)² = 640, with pauses more.
    assert 300 < found["needed"] < 3000
    assert main(["gate", "--baseline", str(noisy), "--candidate", str(noisy), "--limit", "60"]) == 0


def test_what_is_ignored_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A quantity that is ignored fails nothing; warm-up that nobody marked can be left out."""
    baseline, larger = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=2, memory=1 << 31)
    command = ["gate", "--baseline", str(baseline), "--candidate", str(larger), "--json"]
    assert main(command) == 1
    capsys.readouterr()
    assert main([*command, "--ignore", "device_peak", "--warmup", "53"]) == 0
    found = outcomes_of(capsys)
    assert found["comparisons"][-1]["reason"] == "ignored"
    assert found["candidate"]["length"] == 147


def test_markdown_shows_names_as_they_are(tmp_path: Path) -> None:
    """A run's name can neither break the table nor bring a link or an element with it."""
    measured = load(_kept(tmp_path))
    text = markdown(judge(measured, measured, 0.05))
    assert r"\[x\](http://y) &lt;img> \| \`a\`\\x1b" in text


def _kept(tmp_path: Path) -> Path:
    write_run(tmp_path / "a")
    kept = tmp_path / "kept.json"
    assert main(["gate", "--candidate", str(tmp_path / "a"), "--save", str(kept)]) == 0
    content = json.loads(kept.read_text())
    kept.write_text(json.dumps({**content, "run": "[x](http://y) <img> | `a`\x1b"}))
    return kept


@pytest.mark.timed
def test_a_real_training_loop(launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the instrumentation writes is read: of steps that become longer, the phase that does is named."""
    dumped, halves = tmp_path / "all.jsonl", [tmp_path / "short.jsonl", tmp_path / "long.jsonl"]
    launcher.run_forked(PROGRAMS / "gated.py", dumped, LAGGARD_RUN="real")
    steps = dumped.read_text().splitlines(keepends=True)
    assert len(steps) >= 118
    halves[0].write_text("".join(steps[:58]))
    halves[1].write_text("".join(steps[-58:]))
    assert main(["gate", "--baseline", str(halves[0]), "--candidate", str(halves[1]), "--json"]) == 1
    found = outcomes_of(capsys)
    by_name = {each["name"]: each for each in found["comparisons"]}
    assert (found["baseline"]["run"], found["baseline"]["ranks"]) == ("real", 1)
    assert by_name["forward"]["outcome"] == "fail"
    assert by_name["forward"]["baseline"] >= 0.005
    assert by_name["forward"]["candidate"] >= 0.02
    assert json.loads(steps[-1])["memory_peak_bytes"]["host_rss"] > 50e6


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Starts instrumented commands."""
    with Launcher(tmp_path) as running:
        yield running


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run the gate, which must fail with code 2 and one line; return the line."""
    assert main(["gate", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("laggard gate: error: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"laggard_baseline": 2}, "a baseline of schema 2, not 1; save it again with this version"),
        ({"laggard_baseline": True}, "a baseline of schema True, not 1"),
        ({"extra": 1}, "field 'extra' is unknown in the baseline"),
        ({"memory": None}, "memory must be an object"),
        ({"memory": {"host_rss": "1"}}, "host_rss of the baseline must be seconds or bytes, 0 or more, got '1'"),
        ({"ranks": 0}, "run, ranks or unit of the baseline is not what it must be"),
        ({"step": []}, "the baseline has no step"),
        ({"step": [0.1, -1]}, "step of the baseline must be seconds or bytes, 0 or more, got -1"),
        ({"step": [0.1, float("nan")]}, "step of the baseline must be seconds or bytes, 0 or more, got nan"),
        ({"step": [0.1, 0.1]}, "the series of the baseline are not of the same length"),
        ({"phases": {"sleep": []}}, "phases of the baseline: 'sleep' is unknown"),
        ({"recordings": [20]}, "recordings of the baseline must be counts of steps that add up to all of them"),
        ({"recordings": "2"}, "recordings of the baseline must be counts of steps"),
        ({"throughput": {}}, "the baseline has no throughput in steps, or its steps took no time"),
    ],
)
def test_a_baseline_that_is_not_as_it_must_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    """Each mistake in a saved baseline is one line that names it."""
    run, kept = write_run(tmp_path / "a", steps=40), tmp_path / "kept.json"
    assert main(["gate", "--candidate", str(run), "--save", str(kept)]) == 0
    capsys.readouterr()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **change}))
    assert error_of(capsys, "--baseline", kept, "--candidate", run).startswith(f"{kept}: {message}")


def test_a_truncated_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever a baseline ends too early, one line says that it is not whole."""
    run, kept = write_run(tmp_path / "a", steps=40), tmp_path / "kept.json"
    assert main(["gate", "--candidate", str(run), "--save", str(kept)]) == 0
    capsys.readouterr()
    text = kept.read_text()
    for length in (64, len(text) // 2, len(text) - 3):
        kept.write_text(text[:length])
        line = error_of(capsys, "--baseline", kept, "--candidate", run)
        assert line.startswith(f"{kept}: the baseline is not whole (")


def test_recordings_that_can_not_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing, mixed or no recording is one line that names the file or the run, and what to do."""
    run = write_run(tmp_path / "a", steps=40)

    def of(candidate: str | Path, *more: str | Path) -> str:
        return error_of(capsys, "--baseline", run, "--candidate", candidate, *more)

    def folder(name: str, *files: list[str]) -> Path:
        (tmp_path / name).mkdir()
        for number, lines in enumerate(files):
            (tmp_path / name / f"{number}.jsonl").write_text("\n".join(lines))
        return tmp_path / name

    assert of(write_run(tmp_path / "four", ranks=4)).startswith("the baseline has 2 ranks, the candidate 4;")
    assert of(tmp_path / "none").startswith(f"{tmp_path}/none: no such file or folder")
    assert "no .jsonl file in the folder" in of(folder("empty"))
    assert of(folder("blank", [""])) == f"{tmp_path}/blank: no step in it"
    cut = folder("cut", [*lines_of(0, 5), lines_of(0, 6)[5][:90]])
    assert of(cut) == f"{cut}/0.jsonl, line 6: no JSON object"
    assert of(folder("gap", lines_of(0, 9), lines_of(2, 9))).endswith("has 2 of 3 ranks, rank 1 is missing")
    half = folder("half", lines_of(0, 9, world_size=4), lines_of(1, 9, world_size=4))
    assert of(half).endswith("has 2 of 4 ranks, rank 2 is missing")
    sizes = folder("sizes", lines_of(0, 9, world_size=4), lines_of(1, 9, world_size=2))
    assert of(sizes).endswith("has steps of 2 and 4 ranks; give one of them")
    runs = folder("runs", lines_of(0, 9), lines_of(1, 9, run="other"))
    assert of(runs).endswith("has runs other, recorded; a recording is of one run")
    warm = folder("warm", lines_of(0, 3), lines_of(1, 3))
    assert "no step is left that all 2 ranks have" in of(warm)
    odd = folder("odd", lines_of(0, 1, duration_ns=0))
    assert "line 1: durations must be numbers of nanoseconds" in of(odd)
    odd = folder("long", lines_of(0, 1, duration_ns=1))
    assert of(odd).endswith("line 1: the phases take longer than the step")
    odd = folder("memory", lines_of(0, 1, memory_peak_bytes={"host_rss": "1"}))
    assert "line 1: memory_peak_bytes of host_rss must be bytes, 0 or more, got '1'" in of(odd)
    (tmp_path / "binary").write_bytes(b"\xff\xfe{")
    assert of(tmp_path / "binary") == f"{tmp_path}/binary: no text"
    assert "--limit must be a percentage between 0 and 100, got 0" in of(run, "--limit", "0")
    refused = "Prometheus at http://127.0.0.1:1 cannot be reached: Connection refused"
    assert of("run:x", "--prometheus", "http://127.0.0.1:1") == refused
    assert error_of(capsys, "--candidate", run).startswith("--baseline is needed, or --save FILE")
    assert error_of(capsys, "--candidate", run, "--save", tmp_path / "x", "--junit", tmp_path / "y").startswith(
        "--junit"
    )
    assert not (tmp_path / "x").exists()
    assert of(run, "--junit", tmp_path / "none" / "x").endswith("No such file or directory")


def test_runs_in_prometheus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a real Prometheus the interval means are compared; each way to ask for what is not there is one line."""
    span = f"{BEGIN}/{BEGIN + LENGTH}"
    text = openmetrics({"first": 1.0, "equal": 1.0, "slow": 1.4, "grows": 1.0})
    with prometheus_with(tmp_path, text) as address:

        def ask(candidate: str, *more: str | Path) -> list[str]:
            return [
                "--prometheus",
                address,
                "--baseline",
                f"run:first@{span}",
                "--candidate",
                candidate,
                *map(str, more),
            ]

        assert main(["gate", *ask(f"run:equal@{span}", "--json")]) == 0
        found = outcomes_of(capsys)
        by_name = {each["name"]: each for each in found["comparisons"]}
        assert {"unit": "interval", "ranks": 2}.items() <= found["candidate"].items()
        assert found["candidate"]["length"] == pytest.approx(57, abs=2)
        assert by_name["step"]["baseline"] == pytest.approx(0.17, rel=0.02)
        assert by_name["throughput"]["unit"] == "samples/s"
        assert by_name["throughput"]["baseline"] == pytest.approx(2 * 32 / 0.17, rel=0.02)
        assert by_name["host_rss"]["candidate"] == pytest.approx(2.001e9)

        saved = tmp_path / "first.json"
        assert main(["gate", "--prometheus", address, "--candidate", f"run:first@{span}", "--save", str(saved)]) == 0
        capsys.readouterr()
        command = [
            "gate",
            "--prometheus",
            address,
            "--baseline",
            str(saved),
            "--candidate",
            f"run:slow@{span}",
            "--json",
        ]
        assert main(command) == 1
        by_name = {each["name"]: each for each in outcomes_of(capsys)["comparisons"]}
        assert by_name["forward"]["change"] == pytest.approx(0.02 / 0.17, rel=0.1)
        assert [name for name, each in by_name.items() if each["outcome"] == "fail"] == [
            "step",
            "throughput",
            "forward",
        ]

        began = "from 2023-11-14T22:13:20+00:00 to 2023-11-14T23:13:20+00:00"
        assert error_of(capsys, *ask(f"run:other@{span}")).endswith(
            f"has no steps of run 'other' {began}; runs there: equal, first, grows, slow"
        )
        early = error_of(capsys, *ask("run:equal@2020-01-01T00:00:00Z/2020-01-02"))
        assert "to 2020-01-02T00:00:00+00:00; there is no run at that time" in early
        assert "it ends before it begins" in error_of(capsys, *ask("run:equal@2020-01-02/2020-01-01"))
        assert "must have times, got 'yesterday'; try run:" in error_of(capsys, *ask("run:equal@yesterday/"))
        assert f"run 'grows' {began} had 2 to 3 ranks" in error_of(capsys, *ask(f"run:grows@{span}"))
        short = error_of(capsys, *ask(f"run:equal@{BEGIN}/{BEGIN + 90}"))
        assert "no whole interval of 60 s with steps of run 'equal'" in short
        recording = write_run(tmp_path / "a", steps=60)
        line = error_of(capsys, *ask(str(recording)))
        assert line.startswith("the baseline has intervals, the candidate steps; compare JSON lines with JSON lines")


def test_a_server_that_does_not_answer_or_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """Down and unauthorized are one line each, without the password."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b"Unauthorized")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    ask = ("--baseline", "run:a", "--candidate", "run:b", "--prometheus")
    assert error_of(capsys, *ask, "http://u:secret@127.0.0.1:1").startswith(
        "Prometheus at http://127.0.0.1:1 cannot be reached: "
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        line = error_of(capsys, *ask, f"http://u:secret@127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "HTTP 401" in line
    assert "secret" not in line


def test_the_example_workflow_uses_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The workflow is YAML, and every flag of the gate in it exists."""
    text = (Path(__file__).parents[2] / "examples" / "gate.yml").read_text()
    steps = yaml.safe_load(text)["jobs"]["gate"]["steps"]
    (script,) = [step["run"] for step in steps if "laggard gate" in step.get("run", "")]
    with pytest.raises(SystemExit, match="0"):
        main(["gate", "--help"])
    told = capsys.readouterr().out
    flags = set(re.findall(r"--[a-z]+", script))
    assert {"--baseline", "--candidate", "--save", "--markdown", "--junit"} == flags
    assert all(f"{flag} " in told for flag in flags)


def test_a_saved_baseline_keeps_six_digits(tmp_path: Path) -> None:
    """What is saved and loaded is the same run."""
    measured = simulate(np.random.default_rng(1), 50, 0.05, 0.5)
    save(tmp_path / "x.json", measured)
    again = load(tmp_path / "x.json")
    assert np.allclose(again.step, measured.step, rtol=1e-5)
    assert again.phases.keys() == measured.phases.keys()
    assert (again.run, again.ranks, again.unit) == (measured.run, measured.ranks, measured.unit)
    assert (tmp_path / "x.json").stat().st_size < 8000
