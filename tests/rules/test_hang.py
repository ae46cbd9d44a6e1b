"""The rules and `laggard hang` name the same ranks by the same dumps, and no weaker evidence names an innocent."""

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
from laggard_exporter.ras.answer import parse
from laggard_exporter.ras.facts import facts as ras_facts
from tests.rules.conftest import NEWEST, VERSIONS
from tests.support import fake_ras
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


#: Labels of the rules that are taken: those of the two kinds of dumps, and of the evidence that is weighed here.
USED = {None, "call", "device", "recorder", "working", "behind", "ras"}
#: What else is known where the dumps prove nothing: who works, who is behind by the hooks' counts and by RAS'.
CULPRIT = "run_rank:training_stall_culprit:info"
WEIGHED = {
    *RECORDED,
    "run_rank:training_process_open:info",
    "run_rank:training_process_waiting:info",
    "run_rank_process_group:training_process_sequence:last",
    "run_rank:training_process_behind:info",
    "run_rank:training_stall_evidence:info",
    CULPRIT,
}


def rules(folder: Path, recorded: set[str]) -> Path:
    """Write down the rules that judge dumps, of the pack."""
    found: list[dict[str, Any]] = []
    for name in ("normalise.yml", "score.yml", "alert-process.yml"):
        for group in yaml.safe_load((rules_folder() / name).read_text(encoding="utf-8"))["groups"]:
            group["rules"] = [
                rule
                for rule in group["rules"]
                if rule.get("record") in recorded and rule.get("labels", {}).get("training_evidence") in USED
            ]
            found += [{**group, "interval": "15s"}] if group["rules"] else []
    assert {rule["record"] for group in found for rule in group["rules"]} == recorded
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
        "rule_files": [str(rules(tmp_path, RECORDED))],
        "evaluation_interval": "15s",
        "tests": tests,
    }
    play(promtool, tmp_path, test)


def play(promtool: Path, folder: Path, test: dict[str, Any]) -> None:
    """Hold that a test of rules succeeds."""
    path = folder / "test.yml"
    path.write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def counted(run: str, case: HangCase) -> Iterator[dict[str, str]]:
    """Yield what else is known of a case: how many collectives each rank has issued, by hooks and by RAS.

    Hooks count on the host. Those of NCCL run ahead of their devices, and no host waits in a collective.
    """
    job = case.job
    yield _series("run:training_ranks_live:count", job.ranks, training_run=run)
    issued: dict[str, dict[int, int]] = {name: dict.fromkeys(members, 0) for name, (_, members) in job.groups.items()}
    for rank in range(job.ranks):
        who = {"training_run": run, "training_rank": str(rank)}
        yield _series("training_process_condition", 3, **who)
        yield _series("run_rank:training_process_place:last", 3, **who, training_phase="other")
        for call in job.program(rank)[: job.issued[rank]]:
            if not call.ways:
                issued[call.group][rank] += 1
        if rank in case.guilty:
            yield _series("guilty", 1, **who, stopped=str(rank in job.stops))
    for name, counts in issued.items():
        for rank, count in counts.items():
            who = {"training_run": run, "training_rank": str(rank), "training_process_group": name}
            yield _series("training_process_collective_sequence", count, **who)
            newest = job.program(rank)[job.issued[rank] - 1]
            inside = job.gloo and job.waits(rank) and not newest.ways and newest.group == name
            yield _series("training_process_in_collective", inside, **who)
    if not job.gloo:
        asked = [
            fake_ras.communicator(
                number, [fake_ras.member(i, rank, count) for i, (rank, count) in enumerate(counts.items())]
            )
            for number, counts in enumerate(issued.values(), 1)
            if len(counts) > 1
        ]
        for behind in ras_facts(parse(fake_ras.answer(*asked)), job.ranks, {}).behind:
            who = {"training_run": run, "training_rank": str(behind.rank)}
            yield _series("training_process_ras_behind", behind.most - behind.issued, **who)


@pytest.mark.parametrize("promtool", [NEWEST], indirect=True)
def test_counts_name_no_innocent_whose_dump_shows_that_it_waits(promtool: Path, tmp_path: Path) -> None:
    """A rank that leaves a call out, or whose device hangs, makes others late who wait for it; most stops are told."""
    tests: list[dict[str, Any]] = []
    for seed in range(CASES):
        case = draw(seed, all_dumps=True, shapes=[shape for shape in SHAPES if shape.ranks < 64])
        run = f"case-{seed}"
        innocent = f'{CULPRIT}{{training_run="{run}"}} unless on (training_run, training_rank) guilty'
        question = {"expr": innocent, "eval_time": "30s", "exp_samples": []}
        if seed % 15 == 0:
            tests.append({"interval": "15s", "input_series": [], "promql_expr_test": []})
        tests[-1]["input_series"] += [*series(run, case), *counted(run, case)]
        tests[-1]["promql_expr_test"].append(question)
    for test in tests:
        told, stopped = (f"count(group by (training_run) ({each}))" for each in (CULPRIT, 'guilty{stopped="True"}'))
        one = [{"labels": "{}", "value": 1}]
        test["promql_expr_test"].append(
            {"expr": f"{told} >= bool 0.75 * {stopped}", "eval_time": "30s", "exp_samples": one}
        )
    weighed = {"rule_files": [str(rules(tmp_path, WEIGHED))], "evaluation_interval": "15s", "tests": tests}
    play(promtool, tmp_path, weighed)
