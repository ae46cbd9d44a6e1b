"""``laggard diagnose --run`` of a run that has ended: when, how, and what shows it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from laggard_cli.diagnose.ended import Ended
from laggard_cli.main import main
from laggard_cli.past.times import moment
from tests.rules.engine import RUN, Play, prometheus, serving
from tests.support.waiting import wait_until


def test_a_run_that_has_ended_is_shown_with_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found after its series are gone, and the first command that is named shows it as it was."""
    monkeypatch.delenv("COLUMNS", raising=False)  # by which lines would be wrapped
    play = Play()
    with serving(play) as target, prometheus(target, tmp_path) as server:
        asked = ["diagnose", "--prometheus", server.address, "--run", RUN]

        def lives() -> bool:
            """Whether four ranks are known."""
            code = main([*asked, "--json"])
            text = capsys.readouterr().out
            return code == 0 and json.loads(text)["runs"][0]["facts"].get("ranks_live") == 4

        wait_until(lives, 20)
        # A run that anybody asks for has lived for some evaluations.
        time.sleep(4)
        finished_at = time.time()
        play.state = "finished"
        wait_until(lambda: not lives(), 30)
        assert main(asked) == 0
        first, said, see, report = capsys.readouterr().out.splitlines()
        assert (first, report) == (f"run {RUN}", f"  see     laggard report --prometheus {server.address} --run {RUN}")
        assert re.fullmatch(r"  ended \d+ s ago \([\d: -]+\): 4 of 4 ranks ended cleanly", said)
        assert moment("", said.partition("(")[2].partition(")")[0]) == pytest.approx(finished_at, abs=10)
        words = see.split()[2:]
        assert see.startswith("  see     laggard diagnose ")
        assert main(words) == 0
        assert f"run {RUN}  4 of 4 ranks" in capsys.readouterr().out
        assert main(["diagnose", "--prometheus", server.address, "--run", "other"]) == 2
        assert "--run 'other' is not in Prometheus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (("exception", "ValueError"), "4 of 4 ranks ended cleanly"),
        (("request", "SIGTERM"), "SIGTERM asked it to end"),
    ],
)
def test_an_earlier_start_or_a_request_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: tuple[str, str], said: str
) -> None:
    """A run whose last start ended cleanly has not failed, though one before has just; nor has one ended by SIGTERM."""
    play = Play()
    with serving(play) as target, prometheus(target, tmp_path) as server:
        asked = ["diagnose", "--prometheus", server.address, "--run", RUN]

        def told() -> str:
            """Return what the command prints, and nothing while the run is not known."""
            main(asked)
            return capsys.readouterr().out

        wait_until(lambda: f"run {RUN}  4 of 4 ranks" in told(), 20)
        # Rules look at a start with its process, so a moment of both is recorded.
        time.sleep(4)
        play.failure = (time.time(), *failure)
        if failure[0] == "exception":
            play.started = time.time()
            time.sleep(4)
            play.state = "finished"
        else:
            play.state = "dead"
        wait_until(lambda: f"): {said}\n" in told(), 60)


@pytest.mark.parametrize(
    ("how", "finished", "expected", "said"),
    [
        ("finished", 8, 8, "ended 5 h ago: 8 of 8 ranks ended cleanly"),
        ("partly", 3, 8, "ended 5 h ago: 3 of 8 ranks ended cleanly, the others without a word"),
        ("failed", 0, 8, "ended 5 h ago: it failed"),
        ("failed", 1, 8, "ended 5 h ago: it failed, 1 of 8 ranks ended cleanly"),
        ("request", 0, 8, "ended 5 h ago: SIGTERM asked it to end"),
        ("unknown", 0, None, "ended 5 h ago: no rank reported how; a rank that is killed cannot"),
    ],
)
def test_how_a_run_ended(how: str, finished: int, expected: int | None, said: str) -> None:
    """A clean end, none, and what nobody knows are told apart."""
    assert Ended("", how, finished, expected, "SIGTERM").said("5 h ago") == said
