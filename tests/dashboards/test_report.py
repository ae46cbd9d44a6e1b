"""Reports of simulated runs, each with a fault: the first sentence names it, and pictures and tables bear it out."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from laggard_cli.main import main
from tests.dashboards.world import World
from tests.support.chromium import chromium

#: The runs are dear: one process for all tests of them.
pytestmark = pytest.mark.xdist_group("world")

#: What the first line says of each run, and what else must stand in its report.
TOLD = {
    "slow_backward-8-1": (
        (
            r"Rank 0 of run slow_backward-8-1 on slow_backward-8-1-node-0 takes 1\.\d\d times as long as its peers, "
            r"mostly in backward, .* \(since 22:2\d:\d\d UTC, costs 3[789]% of each step\)\."
        ),
        (
            "Rank 0 of run slow_backward-8-1 on host slow_backward-8-1-node-0 takes 1.",
            "for its own work in a step, 16.",
            "rank 0 on slow_backward-8-1-node-0: 1.6",
        ),
    ),
    "hang_in_data-8-1": (
        (
            r"Run hang_in_data-8-1 has stood still for .*: the others wait for rank 7 on hang_in_data-8-1-node-0 "
            r"\(since .*, costs all of that time\)\."
        ),
        ("last seen in phase data", "rank 7 on hang_in_data-8-1-node-0: at last: at work", "8 ranks \u00d7 "),
    ),
    "input_bound-8-1": (
        r"Run input_bound-8-1 waits for its data workers, .* \(since .*, costs 5\d% of each step\)\.",
        (
            "Run input_bound-8-1 waits for data: ",
            "from another verdict: Run input_bound-8-1 waits for its data workers",
        ),
    ),
    "bursts-8-1": (r"Run bursts-8-1 waits for the network in bursts: .* \(since .*\)\.", ()),
    "leaking-8-1": (
        r".*",
        ("TrainingMemoryLeak", "The most of all ranks went from 5."),
    ),
    "hot-8-1": (
        (
            r"Rank 0 of run hot-8-1 on hot-8-1-node-0 takes .* because heat holds back its GPU .* "
            r"\(since .*, costs 4\d% of each step\)\."
        ),
        ("Check the cooling of the host", "from another verdict: Rank 0 of run hot-8-1 on hot-8-1-node-0 takes "),
    ),
    "restarted-8-1": (r"Healthy: no verdict above info in these 24 min\.", ("ranks started once more at",)),
    "healthy-8-1": (r"Healthy: no verdict above info in these 18 min\.", ("8 of 8 ranks were compared.",)),
}


def _written(simulated: World, run: str, path: Path) -> None:
    end = simulated.ends[run]
    times = ["--from", "1699999000", "--to", f"{end:.0f}"]
    assert main(["report", "--prometheus", simulated.address, "--run", run, *times, "-o", str(path)]) == 0


@pytest.mark.parametrize("run", TOLD)
def test_the_first_sentence_names_the_fault(
    simulated: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str
) -> None:
    """Culprit, cause and cost are said first, with the arithmetic of the rules; losses add up."""
    path = tmp_path / "report.html"
    _written(simulated, run, path)
    first, others = TOLD[run]
    assert re.fullmatch(first, capsys.readouterr().out.splitlines()[0])
    text = path.read_text(encoding="utf-8")
    for other in others:
        assert other in text
    assert re.search(r"<th[^>]*>all</th><td[^>]*>100\.0%</td>", text)
    assert "not attributed" not in text


def test_a_part_of_a_run_is_just_that(simulated: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the time before the fault nothing is said; a range in which the run was not there is one line."""
    run, path = "slow_backward-8-1", tmp_path / "report.html"
    command = ["report", "--prometheus", simulated.address, "--run", run, "-o", str(path)]
    assert main([*command, "--from", "1700000000", "--to", "1700000450"]) == 0
    assert "no verdict above info" in capsys.readouterr().out
    assert main([*command, "--from", "1600000000", "--to", "1600000450"]) == 2
    assert "is not in Prometheus at" in capsys.readouterr().err


def test_pictures_of_all_kinds_can_be_seen(simulated: World, tmp_path: Path) -> None:
    """Places and memory fit a phone as they fit a desk, and the browser has nothing to complain about."""
    if not shutil.which("chromium"):
        pytest.skip("no browser: apt-get install chromium")
    with chromium(tmp_path) as tab:
        for run in ("hang_in_data-8-1", "leaking-8-1"):
            _written(simulated, run, tmp_path / f"{run}.html")
            for width in (1280, 390):
                tab.open(tmp_path / f"{run}.html", width)
                assert tab.run("document.documentElement.scrollWidth") <= width
        assert tab.complaints == []
