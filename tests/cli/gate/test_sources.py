"""``laggard gate``: recordings, baselines, Prometheus and a real loop, and what is read of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.evaluation.gate import simulate
from laggard_cli.gate.baseline import load, save
from laggard_cli.main import main
from tests.cli.gate.runs import BEGIN, LENGTH, error_of, openmetrics, outcomes_of, prometheus_with, write_run
from tests.support.launch import PROGRAMS, Launcher


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


def test_a_saved_baseline_keeps_six_digits(tmp_path: Path) -> None:
    """What is saved and loaded is the same run."""
    measured = simulate(np.random.default_rng(1), 50, 0.05, 0.5)
    save(tmp_path / "x.json", measured)
    again = load(tmp_path / "x.json")
    assert np.allclose(again.step, measured.step, rtol=1e-5)
    assert again.phases.keys() == measured.phases.keys()
    assert (again.run, again.ranks, again.unit) == (measured.run, measured.ranks, measured.unit)
    assert (tmp_path / "x.json").stat().st_size < 8000
