"""The quick profile: a straggler is named in a third of the time, and nobody before."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard_cli.rules import render
from tests.rules.conftest import NEWEST, VERSIONS
from tests.rules.engine import COMPUTE, DATA, TRANSFER

RANKS = 4
SLOW_RANK = 2
#: Rank 2 needs longer for its data from here on, so that its own time is 1.5 times as long.
ONSET_SECONDS = 60
SLOW_DATA = DATA + 0.05
INTERVAL_SECONDS = 5
#: Within which it is named.
LIMIT_SECONDS = 45


def _series(rank: int) -> Iterator[tuple[str, str, str]]:
    """Yield metric, labels of its own and promtool's values of each series."""
    before, after = (COMPUTE + data + TRANSFER for data in (DATA, SLOW_DATA))
    own = SLOW_DATA if rank == SLOW_RANK else DATA
    samples = ONSET_SECONDS // INTERVAL_SECONDS

    def grows(healthy: float, slow: float) -> str:
        """Return a counter that grows by so much in a step."""
        each, later = healthy / before * INTERVAL_SECONDS, slow / after * INTERVAL_SECONDS
        return f"0+{each:g}x{samples} {each * samples + later:g}+{later:g}x{samples}"

    yield "steps_total", "", grows(1, 1)
    for metric, healthy, slow in (("step", before, after), ("step_own", COMPUTE + DATA, COMPUTE + own)):
        yield f"{metric}_duration_seconds_sum", "", grows(healthy, slow)
        yield f"{metric}_duration_seconds_count", "", grows(1, 1)
    for phase, healthy, slow in (
        ("data", DATA, own),
        ("forward", COMPUTE, COMPUTE),
        ("communication", TRANSFER, after - COMPUTE - own),
    ):
        yield "phase_duration_seconds_sum", f', training_phase="{phase}"', grows(healthy, slow)
    always = f"x{2 * samples}"
    yield "communication_floor_seconds", "", f"{TRANSFER / 2}{always}"
    for signal in ("communication", "data"):
        yield "signal_available", f', training_signal="{signal}"', f"1{always}"
    yield "rank_start_timestamp_seconds", ', host_name="node-1"', f"0{always}"
    for metric in ("rank_state", "process_state"):
        yield metric, ', training_state="running"', f"1{always}"
    yield "process_up", "", f"1{always}"
    yield "process_phase_age_seconds", "", f"0.1{always}"
    yield "process_world_size", "", f"{RANKS}{always}"


def _test() -> dict[str, Any]:
    named = 'count by (training_rank, training_phase) (ALERTS{alertname="TrainingStraggler", alertstate="firing"})'
    verdict = f'{{training_rank="{SLOW_RANK}", training_phase="data"}}'
    return {
        "interval": f"{INTERVAL_SECONDS}s",
        "input_series": [
            {"series": f'training_{metric}{{training_run="run-a", training_rank="{rank}"{labels}}}', "values": values}
            for rank in range(RANKS)
            for metric, labels, values in _series(rank)
        ],
        "promql_expr_test": [
            {"expr": 'ALERTS{alertname!="LaggardWatchdog"}', "eval_time": f"{ONSET_SECONDS}s"},
            {
                "expr": named,
                "eval_time": f"{ONSET_SECONDS + LIMIT_SECONDS}s",
                "exp_samples": [{"labels": verdict, "value": 1}],
            },
        ],
    }


@pytest.mark.parametrize("promtool", [VERSIONS[0], NEWEST], indirect=True)
def test_a_straggler_is_named_within_45_seconds(promtool: Path, tmp_path: Path) -> None:
    """With scrapes each five seconds and an excess of 1.5, after a healthy minute."""
    rules = tmp_path / "rules"
    rules.mkdir()
    for name, text in render("quick").items():
        (rules / name).write_text(text, encoding="utf-8")
    file = tmp_path / "quick.yml"
    interval = f"{INTERVAL_SECONDS}s"
    file.write_text(
        yaml.safe_dump({"rule_files": ["rules/*.yml"], "evaluation_interval": interval, "tests": [_test()]})
    )
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
