"""By how much a rank's clock is off, in Prometheus' own arithmetic."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from laggard_cli.doctor.ranks import SKEW

FILES = {"rule_files": ["rules.yml"], "evaluation_interval": "5s"}


def test_a_rank_that_stands_still_has_the_clock_of_the_server(tmp_path: Path) -> None:
    """Half a minute after their last step the clock of one rank agrees, and that of the other is 5 minutes ahead."""
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("no promtool")
    (tmp_path / "rules.yml").write_text("groups: []\n")
    rank = '{training_run="run-a",training_rank="%d"}'
    series = {
        f"training_last_step_timestamp_seconds{rank % 0}": "0x6",
        f"training_last_step_timestamp_seconds{rank % 1}": "300x6",
        f"training_process_last_step_age_seconds{rank % 0}": "0+5x6",
        f"training_process_last_step_age_seconds{rank % 1}": "0+5x6",
    }
    expected = [{"labels": rank % number, "value": value} for number, value in enumerate((0, 300))]
    test = {
        "interval": "5s",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [{"expr": SKEW, "eval_time": "30s", "exp_samples": expected}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({**FILES, "tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
