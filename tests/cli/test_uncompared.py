"""Ranks that are scraped more rarely than their peers do not vanish, on a real Prometheus with the rule pack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laggard_cli.main import main
from tests.rules.engine import RUN, Play, prometheus, serving
from tests.support.waiting import wait_until


class _Part(Play):
    """A part of what another play shows: the own metrics of its last rank, or everything else."""

    def __init__(self, whole: Play, *, last: bool) -> None:
        super().__init__()
        self._whole, self._last = whole, last

    def exposition(self) -> str:
        """Return the part, after the whole went on."""
        lines = self._whole.exposition().splitlines(keepends=True)
        return "".join(
            each
            for each in lines
            if ('training_rank="3"' in each and not each.startswith("training_process_")) == self._last
        )


@pytest.mark.parametrize("seconds", [9, 25])
def test_a_rank_that_is_scraped_rarely(seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scraped once in the short window, it is compared over the next one; more rarely, it is named, not healthy.

    The short window of the fast profile has 8 seconds, the medium one 20.
    """
    whole = Play()
    with (
        serving(_Part(whole, last=False)) as target,
        serving(_Part(whole, last=True)) as rare,
        prometheus(target, tmp_path, rare=(rare, seconds)) as server,
    ):

        def diagnosis() -> dict[str, Any]:
            assert main(["diagnose", "--prometheus", server.address, "--json"]) == 0
            (run,) = json.loads(capsys.readouterr().out)["runs"]
            return run

        wait_until(lambda: main(["diagnose", "--prometheus", server.address, "--run", RUN]) == 0, 10)
        capsys.readouterr()
        if seconds == 9:
            wait_until(lambda: len(diagnosis()["ranks"]) == 4 and not diagnosis()["missing"], 90)
            whole.data[3] += 0.1
            slow = "TrainingStraggler"
            wait_until(lambda: any(each["alertname"] == slow for each in server.firing()), 120)
            assert [each["training_rank"] for each in server.firing() if each["alertname"] == slow] == ["3"]
            return
        found = diagnosis()

        def named() -> bool:
            nonlocal found
            found = diagnosis()
            return found["uncompared_ranks"] == {"3": "outside_window"} and found["uncompared"] == {"outside_window": 1}

        wait_until(named, 90)
        assert sorted(each["rank"] for each in found["ranks"]) == ["0", "1", "2"]
        why = "1 of 4 ranks is not compared: rank 3 (no recent step: scraped too rarely, or standing still)"
        assert found["missing"] == [why]
        assert main(["diagnose", "--prometheus", server.address]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert why in said
        assert "healthy" not in said
        assert server.failures() == []
