"""How figures of cost are compared, and that they are there as soon as they are measured."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks import __main__ as benchmarks
from lab.benchmarks import versions
from lab.benchmarks.children import Child, Comparison
from lab.benchmarks.spread import interval, typical

ROOT = Path(__file__).parents[2]


def test_the_interval_of_a_median_ignores_bursts() -> None:
    """The interval of a hundred values spans the middle twenty or so; a fifth of them may be anything."""
    values = [float(number) for number in range(100)]
    assert interval(values) == (40.0, 59.0)
    assert interval([*values[:80], *[1e9] * 20]) == (40.0, 59.0)
    assert typical(values) == (49.5, 9.5)


def test_the_interval_of_few_values_is_all_of_them() -> None:
    """Six values hold the median with 97 %, five do not reach 95 %: both give their whole range."""
    assert interval([3, 1, 2, 6, 5, 4]) == (1, 6)
    assert interval([2.0]) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("more", "theirs", "answer"),
    [
        ([0.2, 0.4, 0.1, 0.3, -0.2, 0.9], 10.0, "not worse"),
        ([0.2, 0.4, 0.1, 0.3, -0.2, 1.1], 10.0, "open"),
        ([1.2, 1.4, 1.1, 1.3, 5.0, 1.9], 10.0, "worse"),
        # Of a hundred microseconds 3 % are allowed.
        ([1.2, 1.4, 1.1, 1.3, 2.9, 1.9], 100.0, "not worse"),
        ([3.2, 3.4, 3.1, 3.3, 5.0, 3.9], 100.0, "worse"),
    ],
)
def test_a_figure_is_judged_by_its_interval(more: list[float], theirs: float, answer: str) -> None:
    """A figure is worse, or not, where all of the interval is on one side of 3 % or 1 µs; else it stays open."""
    judgement = versions.judge([(theirs + difference, theirs) for difference in more])
    assert judgement.answer == answer
    assert (judgement.low, judgement.high) == pytest.approx((min(more), max(more)))


def test_the_row_of_a_figure() -> None:
    """A row has both versions, the difference and the ratio with their intervals, and the answer."""
    judgement = versions.judge([(21.0, 20.0), (22.0, 20.0), (23.0, 20.0)])
    expected = "| added | 22.00 | 20.00 | +1.00 to +3.00 | 1.050 to 1.150 | open |"
    assert judgement.row("added") == expected


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [([5.0], 0), ([7.0], 1), ([4.0, 9.0], 2)],
)
def test_the_exit_code_says_whether_a_figure_is_worse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rounds: list[float], expected: int
) -> None:
    """Rounds go on until each figure is known, at most twenty; 1 says worse, 2 that a figure stays open."""
    made = 0

    def measure(_: Any) -> dict[str, versions.Pair]:
        nonlocal made
        made += 1
        return {"figure": (rounds[made % len(rounds)], 5.0)}

    monkeypatch.setitem(versions.MEASURED, "figure", measure)
    assert versions.compare(ROOT, ["figure"], quick=False) == expected
    assert made == (20 if expected == 2 else 6)
    assert capsys.readouterr().out.count("| figure |") == 1


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    """A folder without laggard is named before anything is measured."""
    with pytest.raises(SystemExit) as error:
        versions.compare(tmp_path, [], quick=True)
    assert error.value.code == (
        f"--beside must be a checkout of laggard, got {tmp_path}; try git worktree add PATH COMMIT"
    )


def test_figures_are_written_as_they_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that is interrupted keeps the figures that it has, in the file and on the page; the rest stays."""
    for name in ("README.md", "docs/comparison.md", "docs/benchmarks.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = json.loads((tmp_path / "docs" / "benchmarks.json").read_text())
    measured = {**before["process"], "resident_mib": 123.4}

    def interrupt(_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmarks, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "process", "eager"])
    monkeypatch.setitem(benchmarks.MEASURED, "process", lambda _: measured)
    monkeypatch.setitem(benchmarks.MEASURED, "eager", interrupt)
    with pytest.raises(KeyboardInterrupt):
        benchmarks.main()
    after = json.loads((tmp_path / "docs" / "benchmarks.json").read_text())
    runs = {**before["runs"], "process": after["runs"]["process"]}
    assert after["runs"]["process"] != before["runs"]["process"]
    assert after == {**before, "process": measured, "runs": runs}
    assert "Measured in another run than the rest:" in (tmp_path / "docs" / "benchmarks.md").read_text()
    assert "123.4 MiB" in (tmp_path / "README.md").read_text()


def test_variants_take_turns_in_one_process() -> None:
    """Each turn has what a step takes with laggard's hooks and without; alone, what the drain takes for a step."""
    comparison = Comparison(("bare", "laggard"))
    with Child("beside.py", "eager", 0.8, "bare", "laggard") as child:
        child.wait()
        comparison.measure(child, 3)
        comparison.measure_until(child, "laggard", 5)
        own = child.ask("alone", 1500)
    assert comparison.turns == 5
    assert 100 < comparison.step() < 100_000
    assert set(own) == {"self_time_us", "drain_us"}
    assert own["self_time_us"] > 0.1
    assert 1 < own["drain_us"] < 1000
