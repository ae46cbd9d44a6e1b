"""What is said of measured sizes, and of larger ones."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lab.scale import __main__ as command
from lab.scale.fit import fit
from lab.scale.measure import Result
from lab.scale.report import tables, with_figures
from lab.scale.site import Plan

_GIB = 2**30
_PUSHED = {
    "points": 66_000, "points_each_second": 467.0, "waiting": 1408.0, "samples": 120_000, "samples_lost": 0,
    "times_lost": 0, "refused": 0, "lag_seconds": 0.7,
}  # fmt: skip
_ALERTS = {"TrainingStalled hung 8": 56.2, "TrainingStraggler slow 16": 87.4}


def _result(ranks: int, **more: object) -> Result:
    """Return what a fixed part and a part for each rank would cost."""
    made = Result(
        ranks,
        0.5,
        rules=True,
        series=1000.0 + 200 * ranks,
        samples_each_second=12.0 * ranks,
        processors=0.01 + 1e-4 * ranks,
        resident_bytes=round((0.1 + 5e-4 * ranks) * _GIB),
        rules_seconds=0.4 + 0.004 * ranks,
        longest_group_seconds=0.01 + 5e-4 * ranks,
        fullest_group="score.yml;scores",
        fullest_group_share=(0.01 + 5e-4 * ranks) / 15,
        alerts=_ALERTS,
    )
    return replace(made, **more)  # pyright: ignore[reportArgumentType] - names are checked by the class


def test_a_line_is_found() -> None:
    """A fixed part and a part for each rank are told apart, and carried on."""
    line = fit([100, 1000, 10_000], [3 + 0.2 * ranks for ranks in (100, 1000, 10_000)])
    assert (line.fixed, line.each, line.off) == (pytest.approx(3), pytest.approx(0.2), pytest.approx(0, abs=1e-9))
    assert line.at(100_000) == pytest.approx(20_003)
    assert 0.99 < line.power < 1


def test_what_grows_faster_than_a_line_is_seen() -> None:
    """Where a cost grows with the square of the ranks, the power says so, and the line is off."""
    line = fit([100, 1000, 10_000], [1e-6 * ranks**2 for ranks in (100, 1000, 10_000)])
    assert line.power == pytest.approx(2)
    assert line.off > 0.5


def test_sizes_are_carried_on_to_100_000_ranks() -> None:
    """Three sizes that hold give a table of what more would cost; one that broke is not part of it, and is named."""
    results = [_result(ranks) for ranks in (100, 1000, 10_000)]
    results.append(_result(20_000, processors=7.0, broke="an evaluation was missed", broke_at=143.0))
    lines = tables(results).splitlines()
    assert "- scrape to prometheus: 10,000 ranks hold; with 20,000 an evaluation was missed after 143 s." in lines
    assert lines[-6:] == [
        "| scrape | series | 1,000 | 200,000 | 0% | 1.00 | 20,001,000 |",
        "| scrape | processors | 0.01 | 0.1 | 0% | 0.96 | 10 |",
        "| scrape | memory | 0.1 GiB | 0.5 GiB | 0% | 0.93 | 50 GiB |",
        "| scrape | all groups of rules, once each | 0.4 s | 4 s | 0% | 0.96 | 400 s |",
        "| scrape | longest group | 0.01 s | 0.5 s | 0% | 0.99 | 50 s |",
        "| scrape | fullest group, of its interval | 0.067 % | 3.3 % | 0% | 0.99 | 333 % |",
    ]
    assert "100,000" not in tables(results[:2])


def test_what_was_pushed_has_a_table() -> None:
    """Agents and gateway beside the server, what waited, what was lost, and how late it came."""
    programs = {"agent-0": 0.3, "agent-1": 0.2, "gateway": 0.4, "prometheus": 0.11, "ranks": 0.1}
    sizes = {"agent-0": _GIB // 10, "agent-1": _GIB // 5, "gateway": _GIB // 4, "prometheus": _GIB, "ranks": _GIB}
    result = _result(100, path="otlp", program_processors=programs, program_bytes=sizes, pushed=_PUSHED)
    assert tables([result]).splitlines()[-1] == (
        "| 100 | prometheus | 21,000 | 467 | 0.02 | 0.50 | 0.40 | 0.2 GiB | 2 x 0.2 GiB | 0.2 GiB | 0.80 s | 0 | "
        "1,408 points | 0 | 0 of 120,000 | 0.7 s | 87 s | 56 s |"
    )


def test_dashboards_have_a_table() -> None:
    """What the queries of each dashboard take, the longest of the largest size first."""
    small, large = ({"laggard-run": 0.01 * factor, "laggard-ranks": 0.02 * factor**2} for factor in (1, 10))
    results = [_result(100, dashboards=small), _result(1000, dashboards=large), _result(2000)]
    assert tables(results).split("\n\n")[1].splitlines() == [
        "| dashboard | 100 ranks, prometheus | 1,000 ranks, prometheus |",
        "|---:|---:|---:|",
        "| laggard-ranks | 0.02 s | 2.00 s |",
        "| laggard-run | 0.01 s | 0.10 s |",
    ]


def test_a_lost_sample_is_a_limit() -> None:
    """A size at which a sample was lost, or a verdict did not come, does not hold."""
    lost = _result(200, path="otlp", pushed={**_PUSHED, "samples_lost": 1})
    assert (_result(100).held, lost.held, _result(100, not_said=["TrainingStalled hung 8"]).held) == (
        True,
        False,
        False,
    )
    assert "- otlp to prometheus: 0 ranks hold; with 200 a sample was lost." in tables([lost])


def test_ranks_are_doubled_until_it_breaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Behind the sizes that are given each is twice the one before, up to the first that does not hold."""

    def play(ranks: int, _: Plan) -> Result:
        return _result(ranks, broke="an evaluation was missed" if ranks > 3000 else "", program_bytes={"ranks": 1})

    monkeypatch.setattr(command, "measure", play)
    for most, sizes, status in (("40000", [100, 1000, 2000, 4000], 1), ("2500", [100, 1000, 2000], 0)):
        file = tmp_path / "scale.json"
        given = ["scale", "--ranks", "100", "1000", "--until-it-breaks", most, "--json", str(file)]
        monkeypatch.setattr(sys, "argv", given)
        assert command.main() == status
        assert [each["ranks"] for each in json.loads(file.read_text())] == sizes


def test_a_picture_takes_two_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each cost through all scraped sizes; of one size alone there is a line of text and no picture."""
    for sizes, status in (((100,), 2), ((100, 1000), 0)):
        (tmp_path / "scale.json").write_text(json.dumps([asdict(_result(ranks)) for ranks in sizes]))
        given = ["scale", "--add", str(tmp_path / "scale.json"), "--picture", str(tmp_path / "scale.svg")]
        monkeypatch.setattr(sys, "argv", given)
        assert command.main() == status
    said = "scale: --picture: takes two sizes or more, by the path scrape and with rules\n"
    assert capsys.readouterr().err == said
    drawn = (tmp_path / "scale.svg").read_text()
    assert [drawn.count(each) for each in ("<polyline", "<circle", ">100<", ">1,000<")] == [3, 6, 1, 1]


def test_figures_of_before_are_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was measured at several times stands in a document together, in the place that it has for figures."""
    begin, end = "<!-- figures: made by python -m lab.scale --document -->", "<!-- end of figures -->"
    files = [tmp_path / f"{ranks}.json" for ranks in (1000, 100)]
    for file, ranks in zip(files, (1000, 100), strict=True):
        file.write_text(json.dumps([asdict(_result(ranks))]))
    document = tmp_path / "scale.md"
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    monkeypatch.setattr(sys, "argv", ["scale", "--add", *map(str, files), "--document", str(document)])
    assert command.main() == 0
    assert document.read_text() == with_figures(f"before\n{begin}{end}\nafter\n", [_result(100), _result(1000)])
