"""A rank that stands out and is not named: diagnose says which step or veto holds the verdict back, and until when."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from laggard_cli.diagnose.gather import diagnose
from laggard_cli.main import main
from laggard_cli.prometheus import Prometheus
from tests.rules.engine import RUN, Play, prometheus, serving
from tests.support.fake_prometheus import Series, fake_prometheus, firing
from tests.support.waiting import wait_until

_RANK = {"training_run": "r", "training_rank": "3"}
_LIMITS: Series = [({"name": "persistence_share"}, 0.8), ({"name": "window_steps"}, 16)]


def _site(share: float, steps: float, *vetoes: str) -> dict[str, Series]:
    return {
        "count by (cluster, training_run) (run:training_ranks_live": [({"training_run": "r"}, 4)],
        "run_rank:training_straggler_score:ratio": [(_RANK, 1.31), ({**_RANK, "training_rank": "1"}, 1.2)],
        "run_rank:training_straggler_share:ratio": [
            ({**_RANK, "training_window": "short"}, share),
            ({**_RANK, "training_window": "medium"}, share / 3),
        ],
        "run:training_window_steps:sustained": [
            ({"training_run": "r", "training_window": "short"}, steps),
            ({"training_run": "r", "training_window": "medium"}, 3 * steps),
        ],
        "run_rank:training_straggler_veto:info": [
            ({**_RANK, "training_window": "short", "training_veto": veto}, 1) for veto in vetoes
        ],
        "laggard_threshold{name=~": _LIMITS,
    }


@pytest.mark.parametrize(
    ("share", "steps", "vetoes", "window", "said"),
    [
        (0.5, 40, (), "short", "it stood out in 50% of the evaluations of the window, and is named from 80% on"),
        (0.9, 10, (), "medium", "it stood out in 30% of the evaluations of the window, and is named from 80% on"),
        (
            0.9,
            40,
            (),
            "short",
            (
                "it stood out in 90% of the evaluations of the window, and is named from 80% on at the next "
                "evaluation; if it is not, laggard doctor says whether the rule fails"
            ),
        ),
        (0.9, 40, ("hiccup",), "short", "it was far too slow for a moment, and is not now"),
        # A veto says nothing as long as the share is too small.
        (
            0.5,
            40,
            ("hiccup",),
            "short",
            "it stood out in 50% of the evaluations of the window, and is named from 80% on",
        ),
        (0.9, 40, ("of a later version",), "short", "of a later version"),
    ],
)
def test_what_holds_a_verdict_back(share: float, steps: float, vetoes: tuple[str, ...], window: str, said: str) -> None:
    """The rank that stands out most, by the shortest window with enough steps."""
    with (
        fake_prometheus(_site(share, steps, *vetoes), []) as address,
        contextlib.closing(Prometheus(address)) as client,
    ):
        (found,) = diagnose(client, None)
        assert found.held_back is not None
        assert (found.held_back.rank, found.held_back.window) == ("3", window)
        start = "no verdict yet: rank 3 needs 1.31 times as long as its peers for its own work in a step; "
        assert found.held_back.said() == start + said


@pytest.mark.parametrize(("query", "seconds"), [("x[2m]", 120.0), ("x[2q]", None), ("x", None), ("", None)])
def test_the_length_of_a_window_is_what_the_rules_say(
    query: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a server's rule has no duration, nothing is said of it; where it has, until when is."""
    monkeypatch.setattr(Prometheus, "recorded", lambda *_: [({"training_window": "short"}, query)])
    with fake_prometheus(_site(0.5, 40), []) as address, contextlib.closing(Prometheus(address)) as client:
        (found,) = diagnose(client, None)
    assert found.held_back is not None
    assert found.held_back.window_seconds == seconds
    assert ("of the last 2 minutes, and is named from 80% on, in 36 s if it lasts" in found.held_back.said()) is bool(
        seconds
    )


def test_who_is_named_is_not_held_back() -> None:
    """Then it is said of the next one, or of nobody."""
    with (
        fake_prometheus(_site(0.9, 40), [firing("TrainingStraggler", "r", "3")]) as address,
        contextlib.closing(Prometheus(address)) as client,
    ):
        (found,) = diagnose(client, None)
        assert found.held_back is None


def test_until_when_is_said_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a real Prometheus: before its verdict a slow rank has a share of the evaluations, and a window of so long."""
    play = Play()
    with serving(play) as target, prometheus(target, tmp_path) as server:

        def diagnosis() -> dict[str, Any]:
            assert main(["diagnose", "--prometheus", server.address, "--run", RUN, "--json"]) == 0
            (run,) = json.loads(capsys.readouterr().out)["runs"]
            return run

        wait_until(lambda: main(["diagnose", "--prometheus", server.address, "--run", RUN]) == 0, 10)
        capsys.readouterr()
        wait_until(lambda: len(diagnosis()["ranks"]) == 4 and not diagnosis()["missing"], 60)
        # Far above the limit, so that no jitter of a busy machine keeps it from being named.
        play.data[2] += 0.04
        held: list[dict[str, Any]] = []

        def named() -> bool:
            found = diagnosis()
            held.extend([found["held_back"]] if found["held_back"] else [])
            return any(each["alertname"] == "TrainingStraggler" for each in server.firing())

        wait_until(named, 150)
        shares = [each["share"] for each in held if each["rank"] == "2"]
        assert shares
        assert all(0 < share <= 1 for share in shares)
        assert {each["window_seconds"] for each in held if each["window"] == "short"} <= {16.0}
