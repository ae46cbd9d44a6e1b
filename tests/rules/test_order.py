"""What a rule sees of what stands above it in its group, in each engine: the same evaluation, or the one before."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.rules.engine import free_address
from tests.rules.pack import rules, selectors
from tests.rules.test_vmalert import TOOL
from tests.support.waiting import wait_until

#: Each evaluation writes its time, and below what it sees of that.
_GROUP: dict[str, Any] = {
    "name": "order",
    "interval": "1s",
    "rules": [
        {"record": "written", "expr": "vector(time())"},
        {"record": "seen", "expr": "written + 0"},
        {"record": "seen_late", "expr": "time() - seen"},
    ],
}


def test_a_reference_is_chosen_by_what_is_as_fresh() -> None:
    """Promtool evaluates all groups at once: no play shows that a count comes a minute after its ranks."""
    mine = [rule for rule in rules() if rule.group == "laggard-references"]
    read = {
        each.name for rule in mine for each in selectors(rule.expr) if (each.name or "").startswith("run_peer_group:")
    }
    assert "run_peer_group:training_ranks_compared:count" in read
    assert read <= {rule.name for rule in mine}


def test_evaluations_are_counted_where_scores_are() -> None:
    """A share of evaluations is of those of one group: else its newest is there before the score of that moment."""
    group = {rule.name: rule.group for rule in rules()}
    shares = [
        {each.name or "" for each in selectors(rule.expr)}
        for rule in rules()
        if "count_over_time(laggard_rules_info" in rule.expr
    ]
    counted = {name for names in shares for name in names if name.startswith("run_rank:training_straggler_score:")}
    assert counted >= {f"run_rank:training_straggler_score:{each}" for each in ("ratio", "recent")}
    assert {group[name] for name in counted} == {group["laggard_rules_info"]}


def test_a_place_is_known_as_soon_as_the_phase_is() -> None:
    """A host that an alert learns later makes another alert of it: what names hosts waits for no inventory."""
    for name in ("run_rank:training_straggler_place:info", "run_rank:training_process_place:last"):
        (mine,) = (rule for rule in rules() if rule.name == name)
        beside = {rule.name for rule in rules() if rule.group == mine.group}
        recorded = {each.name for each in selectors(mine.expr) if ":" in (each.name or "")}
        assert recorded <= beside, name


@contextlib.contextmanager
def _serving(folder: Path, *flags: str) -> Iterator[httpx.Client]:
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [_GROUP]}))
    configuration = folder / "prometheus.yml"
    configuration.write_text(f"rule_files: ['{folder / 'rules.yml'}']\n")
    address = free_address()
    command = [
        "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
        *flags,
    ]
    process = subprocess.Popen(command)
    try:
        with httpx.Client(base_url=f"http://{address}") as client:
            yield client
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("flags", [(), ("--enable-feature=concurrent-rule-eval",)], ids=["in turn", "concurrently"])
def test_prometheus_shows_the_same_evaluation(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Also where rules that do not read each other are evaluated at once."""
    with _serving(tmp_path, *flags) as client:

        def late() -> list[str]:
            with contextlib.suppress(httpx.HTTPError):
                answer = client.get("/api/v1/query", params={"query": "seen_late[10s]"}).raise_for_status().json()
                return [value for series in answer["data"]["result"] for _, value in series["values"]]
            return []

        # The first evaluations of a server that starts may be looked up before they can be read.
        wait_until(lambda: len(late()) >= 6, 30)
        assert set(late()[-3:]) == {"0"}


def test_vmalert_shows_the_evaluation_before(tmp_path: Path) -> None:
    """So a verdict may be one evaluation later there, and a step that excuses must be no later than what it excuses."""
    if not TOOL.exists():
        pytest.skip("no vmalert-tool: run scripts/tools/fetch_tools.sh")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [_GROUP]}))
    asked = {"expr": "seen_late", "eval_time": "10s", "exp_samples": [{"labels": "seen_late", "value": 2}]}
    test = {
        "rule_files": [str(tmp_path / "rules.yml")],
        "evaluation_interval": "1s",
        "tests": [{"interval": "1s", "input_series": [], "metricsql_expr_test": [asked]}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [TOOL, "unittest", f"-files={tmp_path / 'test.yml'}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
