"""What ``diagnose`` asks of Prometheus, in Prometheus' own arithmetic."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from laggard_cli.diagnose import gather


def _check(folder: Path, expression: str, series: Mapping[str, str], expected: Mapping[str, float | None]) -> None:
    """Ask for an expression, without rules, at each time; None is no answer."""
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("no promtool")
    asked = [
        {
            "expr": expression,
            "eval_time": moment,
            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
        }
        for moment, value in expected.items()
    ]
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "15s", "input_series": given, "promql_expr_test": asked}
    (folder / "test.yml").write_text(json.dumps({"tests": [test]}), encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", folder / "test.yml"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_own_times_have_data_until_ranks_are_compared_with_it_again(tmp_path: Path) -> None:
    """Who becomes slow in data while the run waits for data as a whole is slow in the table too, at each moment."""
    labels = '{training_run="r", training_rank="1"}'
    series = {
        'run:training_data_limited:info{training_run="r"}': "1x8 stale",
        # Recorded without data for up to a minute more.
        f"run_rank:training_step_own_seconds:compared{labels}": "0.03x12 0.28x20",
        f"run_rank:training_step_own_seconds:mean{labels}": "0.25x32",
    }
    _check(tmp_path, f"max({gather.OWN_TIMES})", series, {"1m": 0.25, "2m30s": 0.25, "5m": 0.28})


def test_a_run_that_has_ended_is_not_known_by_an_alert_that_waits(tmp_path: Path) -> None:
    """Of a run without a living rank only an alert that fires is told; how it ended is said instead."""
    for state, known in (("pending", None), ("firing", 1.0)):
        alert = f'ALERTS{{alertname="TrainingScrapesSparse", alertstate="{state}", training_run="r"}}'
        _check(tmp_path, f"sum({gather.RUNS})", {alert: "1x8"}, {"1m": known})
