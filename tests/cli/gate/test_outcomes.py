"""``laggard gate``: equal runs pass, slower ones fail, and everything that is printed or written says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from laggard_cli.gate.baseline import load
from laggard_cli.gate.statistics import MIN_VALUES
from laggard_cli.gate.verdict import judge
from laggard_cli.gate.view import markdown
from laggard_cli.main import main
from tests.cli.gate.runs import outcomes_of, write_run


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


def test_the_example_workflow_uses_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The workflow is YAML, and every flag of the gate in it exists."""
    text = (Path(__file__).parents[3] / "examples" / "gate.yml").read_text()
    steps = yaml.safe_load(text)["jobs"]["gate"]["steps"]
    (script,) = [step["run"] for step in steps if "laggard gate" in step.get("run", "")]
    with pytest.raises(SystemExit, match="0"):
        main(["gate", "--help"])
    told = capsys.readouterr().out
    flags = set(re.findall(r"--[a-z]+", script))
    assert {"--baseline", "--candidate", "--save", "--markdown", "--junit"} == flags
    assert all(f"{flag} " in told for flag in flags)
