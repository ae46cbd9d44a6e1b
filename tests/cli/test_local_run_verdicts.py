"""What ``laggard run --local`` says while a job runs, and on the card at its end."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from laggard_cli.diagnose.model import Diagnosis, Rank
from laggard_cli.local_run import card_view
from laggard_cli.local_run.card import Card, Measured
from laggard_cli.local_run.judgement import why_no_verdict
from laggard_cli.local_run.verdicts import Said, Verdicts
from tests.cli.local_job import Local
from tests.cli.test_diagnose import VERDICT

#: Four ranks with steps of 240 ms that are marked by hand; rank 2 is slow in data, and the others wait for it. All of a
#: step is sleep, so other tests beside it change little of its length.
RANKS = """
import os, subprocess, sys, time
import laggard

if "RANK" not in os.environ:
    ranks = [
        subprocess.Popen(
            ["opentelemetry-instrument", "python", *sys.argv],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"},
        )
        for rank in range(4)
    ]
    sys.exit(max(rank.wait() for rank in ranks))
laggard.instrument()
data = 0.2 if os.environ["RANK"] == "2" else 0.02
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    with laggard.step():
        for phase, seconds in (("data", data), ("forward", 0.02), ("communication", 0.22 - data)):
            with laggard.phase(phase):
                time.sleep(seconds)
"""
OWN = tuple(Rank(str(rank), 0.1, 0.01) for rank in range(2))
FACTS = {"ranks_live": 2.0, "ranks_expected": 2.0, "ranks_waiting_known": 2.0}


def test_a_verdict_has_a_line_when_it_begins_and_one_when_it_is_over() -> None:
    """None while it holds, none when it comes back at once, none for another run; the card has its last numbers."""
    verdicts = Verdicts(VERDICT.run)
    begins = f"{VERDICT.severity}: {VERDICT.alert}: {VERDICT.summary}"
    assert verdicts.update([VERDICT, replace(VERDICT, run="other")], 100.0) == [begins]
    # The host becomes known.
    assert verdicts.update([replace(VERDICT, host="elsewhere", summary="newer")], 110.0) == []
    assert verdicts.update([], 120.0) == []
    assert verdicts.update([VERDICT], 140.0) == []
    assert verdicts.update([], 150.0) == []
    over = f"over after 50 s: {VERDICT.alert}: rank {VERDICT.rank}, phase {VERDICT.phase}"
    assert verdicts.update([], 180.0) == [over]
    assert verdicts.update([], 190.0) == []
    assert [(said.begin, said.end, said.over) for said in verdicts.all] == [(100.0, 150.0, True)]
    assert verdicts.update([VERDICT], 200.0) == [begins]
    assert [said.end for said in verdicts.all] == [150.0, None]


def test_a_verdict_that_ends_with_the_ranks_held_to_the_end() -> None:
    """Ranks finish before their job does, and in between no alert fires."""
    held, gone = Said(VERDICT, 100.0, 199.0), Said(VERDICT, 100.0, 150.0, over=True)
    card = Card(
        run="r", ended="exit code 0", seconds=100.0, ranks_seen=2, steps=9, measured=Measured(), verdicts=(held, gone),
        judgement="", failure=None, costs=("", ""), processor_seconds=1.0, report=None, folder=None,
    )  # fmt: skip
    shown = [line for line in card_view.lines(card, 100, colour=False) if line.startswith(VERDICT.alert)]
    assert [line.partition(", ")[2] for line in shown] == ["to the end", "for 50 s"]
    assert [each["end"] for each in card.plain()["verdicts"]] == [None, 150.0]


@pytest.mark.parametrize(
    ("diagnosis", "ranks", "compared", "said"),
    [
        (None, 0, 0.0, "not judged: no training was seen"),
        (None, 2, 0.0, "not judged: too short to compare; nothing of the run was recorded"),
        (Diagnosis("r", (), FACTS, ()), 2, 0.0, "not judged: too short to compare; own times need 16 steps"),
        (Diagnosis("r", (), {"ranks_live": 2.0}, OWN), 2, 90.0, "not judged: at least one rank cannot separate"),
        (Diagnosis("r", (), FACTS, OWN), 2, 10.0, "not judged: too short to compare; own times were known for 10 s"),
        (Diagnosis("r", (), FACTS, OWN, standing_out={"1": 3.0}), 2, 10.0, "no verdict yet: rank 1 needs 3 times"),
        (Diagnosis("r", (), FACTS, OWN), 2, 90.0, "healthy: no alert fires"),
    ],
)
def test_a_run_is_healthy_only_where_it_was_compared(
    diagnosis: Diagnosis | None, ranks: int, compared: float, said: str
) -> None:
    """A run that was too short, or whose ranks cannot be compared, is not judged, and it is said why."""
    assert why_no_verdict(diagnosis, ranks, compared, needed=40.0).startswith(said)


def test_a_slow_rank_is_named_on_the_terminal_and_on_the_card(tmp_path: Path) -> None:
    """One line at the start, one for the verdict, and the card; a page about the run stays, and nothing else."""
    local = Local(tmp_path)
    local.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{local.environment['PATH']}"
    (tmp_path / "ranks.py").write_text(RANKS)
    command = ("--profile", "fast", "--json", "card.json", "--run", "four", "python", "ranks.py", "45")
    with local.start(*command) as process:
        output, errors = process.communicate(timeout=120)
    ours = [line for line in errors.splitlines() if line.startswith("laggard: ")]
    card = next(number for number, line in enumerate(ours) if line.startswith("laggard: run four: exit code 0"))
    told = ours[:card]
    assert (output, process.returncode, len(told)) == ("", 0, 2), errors
    assert re.fullmatch(
        r"laggard: run four: verdicts come here; more: laggard top in another terminal, " r"http://127\.0\.0\.1:\d+",
        told[0],
    )
    assert re.match(r"laggard: warning: TrainingStraggler: Rank 2 of run four .* as its peers, mostly in data", told[1])
    text = " ".join(line.removeprefix("laggard: ").strip() for line in ours[card:])
    assert re.search(r"4 ranks, \d+ steps of 2[4-6]\d(\.\d)? ms a step: data [67]\d(\.\d)? ms", text), text
    for part in (
        "TrainingStraggler  warning, to the end",
        "Most of the difference is in phase data.",
        "Compare the DataLoader",
        "% of each step; ",
        "of processor time",
        f"report: {tmp_path}/runs/four/report.html",
    ):
        assert part in text
    plain = json.loads((tmp_path / "card.json").read_text())
    assert [(each["alert"], each["rank"], each["phase"], each["end"]) for each in plain["verdicts"]] == [
        ("TrainingStraggler", "2", "data", None)
    ]
    assert (plain["judgement"], plain["ranks_seen"]) == ("", 4)
    assert plain["measured"]["ranks"][0]["rank"] == "2"
    assert plain["measured"]["phases"].keys() == {"data", "forward", "communication", "other"}
    assert local.left(process.pid) == ([], ["card.json", "ranks.py", "runs"], [])
    assert [str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").rglob("*")] == [
        "runs/four",
        "runs/four/report.html",
    ]
