"""The rules and `laggard hang` name the same ranks by the same dumps."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard_cli.rules import rules_folder
from laggard_exporter.hang.collector import samples
from laggard_exporter.hang.facts import facts
from laggard_exporter.hang.verdict import Reason, judge
from tests.rules.conftest import NEWEST, VERSIONS
from tests.support.hang_cases import SHAPES, HangCase, draw

CASES = 150
NAMED = ("run_rank:training_process_outside:info", "run_rank:training_process_apart:info")
#: And the steps before them.
RECORDED = {
    "run_rank_process_group:training_process_joined:last",
    "run_process_group_call:training_process_joined:count",
    "run_process_group:training_process_joined:count",
    "run_process_group:training_process_begun:info",
    "run_process_group:training_process_members:count",
    "run_rank:training_process_awaited:info",
    *NAMED,
}


def rules(folder: Path) -> Path:
    """Write down the rules that judge dumps, of the pack."""
    found: list[dict[str, Any]] = []
    for name in ("normalise.yml", "score.yml"):
        for group in yaml.safe_load((rules_folder() / name).read_text(encoding="utf-8"))["groups"]:
            group["rules"] = [rule for rule in group["rules"] if rule.get("record") in RECORDED]
            found += [{**group, "interval": "15s"}] if group["rules"] else []
    assert {rule["record"] for group in found for rule in group["rules"]} == RECORDED
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": found}), encoding="utf-8")
    return path


def series(run: str, case: HangCase) -> Iterator[dict[str, str]]:
    """Yield what exporters serve of the dumps of a case, and of the phases in which ranks stand."""
    for rank, dump in case.dumps().items():
        for sample in samples((run, str(rank)), facts(dump)):
            labels = zip(sample.family.labels, sample.labels, strict=True)
            yield _series(sample.family.name, sample.value, **dict(labels))
        if dump.calling:
            phase = {"training_run": run, "training_rank": str(rank), "training_phase": "communication"}
            yield _series("training_process_phase", 1, **phase)


def _series(name: str, value: float, **labels: str) -> dict[str, str]:
    shown = ",".join(f'{label}="{each}"' for label, each in labels.items())
    return {"series": f"{name}{{{shown}}}", "values": f"{int(value)}x1"}


@pytest.mark.parametrize("promtool", [VERSIONS[0], NEWEST], indirect=True)
def test_the_rules_name_whom_laggard_hang_names(promtool: Path, tmp_path: Path) -> None:
    """On each case, and nobody where it names nobody.

    But one that alone is not done with a collective: a broken link leaves that too, so the alert does not say it.
    """
    tests: list[dict[str, Any]] = []
    names: list[str] = []
    for seed in range(CASES):
        case = draw(seed, all_dumps=True, shapes=[shape for shape in SHAPES if shape.ranks < 64])
        run = f"case-{seed}"
        culprits = [each for each in judge(case.dumps(), case.job.ranks).culprits if each.reason is not Reason.ALONE]
        names += [culprit.reason.name for culprit in culprits]
        labels = [f'{{training_run="{run}",training_rank="{culprit.rank}"}}' for culprit in culprits]
        either = " or ".join(f'{name}{{training_run="{run}"}}' for name in NAMED)
        question = {
            "expr": f"group by (training_run, training_rank) ({either})",
            "eval_time": "15s",
            "exp_samples": [{"labels": each, "value": 1} for each in labels],
        }
        # A query of promtool may not read more than 10,000 samples.
        if seed % 15 == 0:
            tests.append({"interval": "15s", "input_series": [], "promql_expr_test": []})
        tests[-1]["input_series"] += series(run, case)
        tests[-1]["promql_expr_test"].append(question)
    assert set(names) >= {"OUTSIDE", "SIZE", "NOT_STARTED"}
    test = {
        "rule_files": [str(rules(tmp_path))],
        "evaluation_interval": "15s",
        "tests": tests,
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
