"""What the rules cost, as tables and as a picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lab.evaluation import cost
from lab.evaluation.engine import BINARY, Result
from lab.printing import between

_COSTS = [
    cost.Cost(ranks, 600.0, 156 * ranks, ranks / 100, ranks / 1000, 2.25e-4 * ranks, 6e4 * ranks, ranks / 1000, 0, [])
    for ranks in (100, 1000)
]


def test_each_size_is_a_row_of_a_document() -> None:
    """Process time with and without rules, what rules take of 15 seconds, and the same for 1,000 ranks; their bytes."""
    text = between(f"before\n{cost.BEGIN}\nold\n{cost.END}\nafter", cost.BEGIN, cost.END, cost.table(_COSTS))
    assert "old" not in text
    assert text.startswith("before")
    assert text.splitlines()[5:7] == [
        "| 100 | 15,600 | 1.0 s | 0.1 s | 0.022 s | 0.225 s | 6.0 MB | 0.10 s | 0 |",
        "| 1,000 | 156,000 | 10.0 s | 1.0 s | 0.225 s | 0.225 s | 60.0 MB | 1.00 s | 0 |",
    ]


def test_the_document_has_a_place_for_the_figures() -> None:
    """``make bench`` writes them there."""
    text = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert "| 100 | 15,600 | 1.0 s |" in between(text, cost.BEGIN, cost.END, cost.table(_COSTS))


def test_the_picture_has_a_point_for_each_size() -> None:
    """Ten times the ranks and ten times the cost are a decade to the right and one up, for rules and for storage."""
    root = ET.fromstring(cost.picture(_COSTS))
    points = [(float(each.get("cx", "")), float(each.get("cy", ""))) for each in root.iter() if each.get("cx")]
    assert [x for x, _ in points] == [60, 620, 60, 620]
    decade = points[0][1] - points[1][1]
    assert decade > 0
    assert points[2][1] - points[3][1] == pytest.approx(decade, abs=0.1)


def test_a_picture_of_one_size_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line has two ends; nothing is played for nothing."""
    monkeypatch.setattr("sys.argv", ["cost", "--ranks", "16", "--picture", "cost.svg"])
    with pytest.raises(SystemExit, match="2"):
        cost.main()
    assert "--picture: takes two numbers of ranks or more" in capsys.readouterr().err


@pytest.mark.skipif(not BINARY.exists(), reason="scripts/tools/build_rule_engine.sh builds the engine")
def test_garbage_is_collected_as_prometheus_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of the difference have Prometheus' default, or what is asked for."""
    chosen: list[tuple[bool, int]] = []

    def play(_targets: object, _seed: int, *, files: list[Path], collection: int, **_: object) -> Result:
        chosen.append((bool(files), collection))
        return Result(cost={"process_seconds": 1.0, "longest_cycle_seconds": 0.1, "late_evaluations": 0, "rules": []})

    monkeypatch.setattr(cost, "evaluate", play)
    for arguments in ([], ["--collection", "200"]):
        monkeypatch.setattr("sys.argv", ["cost", "--ranks", "16", *arguments])
        assert cost.main() == 0
    assert chosen == [(True, 75), (False, 75), (True, 200), (False, 200)]


@pytest.mark.skipif(not BINARY.exists(), reason="scripts/tools/build_rule_engine.sh builds the engine")
def test_rules_cost_something(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The engine runs the shipped rules over 128 ranks: groups are listed with what they take and allocate."""
    figures = tmp_path / "cost.json"
    monkeypatch.setattr("sys.argv", ["cost", "--ranks", "128", "--seconds", "60", "--json", str(figures)])
    assert cost.main() == 0
    out = capsys.readouterr().out
    assert "| 128 | 19,968 |" in out
    assert "| laggard-means | 15 s |" in out
    (played,) = json.loads(figures.read_text(encoding="utf-8"))
    compared, constant = (
        next(each for each in played["rules"] if each["rule"] == name)
        for name in ("run_rank:training_step_own_seconds:compared", "laggard_rules_info")
    )
    # Each evaluation reads six series of each of 128 ranks, of no less than fifty bytes; the other one none.
    assert compared["allocated_bytes"] / compared["evaluations"] > 128 * 6 * 50
    assert compared["allocated_bytes"] > 5 * constant["allocated_bytes"] > 0
    assert played["allocated"] > 4 * compared["allocated_bytes"] / compared["evaluations"]
