"""A real job under the real exporter: nothing while it trains, facts while it stalls, nothing once it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.shared import dumps
from laggard_cli.main import main
from tests.exporter.support import Exporter, exporter, starting_with
from tests.support.launch import PROGRAMS, Launcher

RANKS = 3


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so; a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"not within a minute: {what}"
        time.sleep(0.1)


def facts(node: Exporter, name: str) -> dict[str, float]:
    """Values of a metric by rank."""
    found = starting_with(node.scrape(), f"training_process_{name}{{")
    return {series.partition('training_rank="')[2][0]: value for series, value in found.items()}


@pytest.mark.parametrize(("kind", "culprit"), [("lonely", 3), ("skipped", 2), ("unsent", 0), ("unreceived", 1)])
def test_the_culprit_of_a_real_hang_is_named(
    kind: str, culprit: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the dumps that ranks leave: whoever waits in a send or receive of gloo is in no collective either."""
    with Launcher(tmp_path) as launcher:
        launcher.fork_ranks(4, PROGRAMS / "hanging_kinds.py", kind)
        wait(lambda: len(list(launcher.state_directory.glob(f"{dumps.PREFIX}*"))) == 4, "dumps")
        assert main(["hang", str(launcher.state_directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["culprits"]
    assert [(each["rank"], each["reason"]) for each in found] == [(culprit, "outside")]


def test_the_facts_of_a_stall_are_gathered_while_it_lasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rank that is waited for has issued one collective less and waits in none; `laggard hang` names it."""
    with Launcher(tmp_path) as launcher, exporter(f"--state.directory={launcher.state_directory}") as node:
        launcher.fork_ranks(RANKS, PROGRAMS / "stalling.py", tmp_path)

        def silent() -> bool:
            left = list(launcher.state_directory.glob(f"{dumps.PREFIX}*"))
            return not left and not starting_with(node.scrape(), "training_process_hang")

        wait(lambda: min(facts(node, "steps_total").values(), default=0) > 5, "steps")
        # Waited for, since on a busy machine a start may stand still for as long as a stall.
        wait(silent, "silence")
        (tmp_path / "stall").touch()
        wait(lambda: len(facts(node, "hang_transfer")) == RANKS, "dumps")
        issued, pending = facts(node, "hang_issued"), facts(node, "hang_pending")
        assert pending == {"0": issued["0"], "1": issued["0"]}
        assert issued == {"0": issued["0"], "1": issued["0"], "2": issued["0"] - 1}
        assert facts(node, "hang_begun") == {}
        assert main(["hang", str(launcher.state_directory), "--json"]) == 0
        assert [culprit["rank"] for culprit in json.loads(capsys.readouterr().out)["culprits"]] == [2]
        (tmp_path / "stall").unlink()
        wait(silent, "an end of the dumps")
