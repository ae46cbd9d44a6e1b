"""No join of the pack ends a rule for everybody, whatever label two series differ in."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import promql_parser as promql
import pytest
import yaml

from laggard_cli.rules.render import rule_files
from tests.rules import adversary
from tests.rules.conftest import TOOLS, by_age
from tests.rules.pack import RULES, Labels, known, rules

#: The joins of the optional rules as well.
FILES = [*rule_files(), "optional/dcgm.yml"]
#: What rules give, and no input does.
RECORDED = frozenset(each.name for each in rules() if not each.is_adapter or ":" in each.name) - {"laggard_threshold"}
#: A label that no rule names.
ADDED = "tenant"
#: Says which threshold: what a rule records has one value of it.
FIXED = "name"


def _played(
    promtool: Path, folder: Path, files: list[Path], series: list[str], before: Collection[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Return what promtool says of rules over series, and some that end; every evaluation that fails is an error."""
    test = {
        "rule_files": [str(file) for file in files],
        "evaluation_interval": "60s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    *({"series": text, "values": adversary.values(text)} for text in series),
                    *({"series": text, "values": "_ 1"} for text in before),
                ],
                "promql_expr_test": [{"expr": "absent(vector(1))", "eval_time": "5m"}],
            }
        ],
    }
    file = folder / "joins.yml"
    file.write_text(yaml.safe_dump(test), encoding="utf-8")
    return subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Return the promtool of the newest release that is there."""
    if not TOOLS:
        pytest.skip("no promtool: run scripts/tools/fetch_tools.sh")
    return TOOLS[max(TOOLS, key=by_age)]


def test_series_that_differ_in_one_label_fail_no_rule(promtool: Path, tmp_path: Path) -> None:
    """All rules are evaluated over input in which each series has a twin for each of its labels."""
    series = list(adversary.series(rules(), known(), RECORDED))
    assert len(series) > 1000
    done = _played(promtool, tmp_path, [RULES / name for name in FILES], series)
    assert done.returncode == 0, (done.stdout + done.stderr)[:3000]


def test_what_a_server_recorded_before_it_started_again_fails_no_rule(promtool: Path, tmp_path: Path) -> None:
    """For five minutes it stands beside what is recorded now: with other hosts, phases, runs on a GPU, reasons."""
    labels = {name: each for name, each in known().items() if name in RECORDED and FIXED not in each}
    before = list(adversary.series(rules(), labels, frozenset(), path=()))
    assert len(before) > 1000
    series = list(adversary.series(rules(), known(), RECORDED))
    done = _played(promtool, tmp_path, [RULES / name for name in FILES], series, before)
    assert done.returncode == 0, (done.stdout + done.stderr)[:3000]


def _matching(node: promql.BinaryExpr) -> promql.LabelModifier | None:
    return node.modifier.matching if node.modifier else None


def test_a_label_that_a_server_adds_to_what_is_recorded_fails_no_join() -> None:
    """As rule groups of Mimir over several tenants do: of an `or` of which one side has it, both would be there."""
    labels = Labels({name: each | {ADDED} if ":" in name else each for name, each in known().items()}, check=False)

    def differs(node: promql.Expr) -> bool:
        if isinstance(node, promql.ParenExpr):
            return differs(node.expr)
        if not isinstance(node, promql.BinaryExpr) or str(node.op) != "or" or _matching(node):
            return False
        return (ADDED in labels.of(node.lhs)) != (ADDED in labels.of(node.rhs))

    def joins(node: promql.Expr) -> Iterator[promql.Expr]:
        if isinstance(node, promql.BinaryExpr):
            if _matching(node) and str(node.op) not in ("and", "or", "unless"):
                yield from (node.lhs, node.rhs)
            yield from (*joins(node.lhs), *joins(node.rhs))
        elif isinstance(node, promql.AggregateExpr | promql.ParenExpr | promql.UnaryExpr):
            yield from joins(node.expr)

    assert [
        (rule.name, str(side)) for rule in rules() for side in joins(promql.parse(rule.expr)) if differs(side)
    ] == []


def test_a_join_that_fails_is_found(promtool: Path, tmp_path: Path) -> None:
    """The twin of one label is enough for a join that does not take one of two."""
    joins = "gpu_up * on (cluster, uuid) group_left (name) gpu_info{laggard_adapter=''}"
    group = {"name": "g", "rules": [{"record": "joined", "expr": joins}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}))
    series = ['gpu_up{uuid="a"}', 'gpu_info{uuid="a", name="a-b"}', 'gpu_info{uuid="a", name="a b"}']
    done = _played(promtool, tmp_path, [tmp_path / "rules.yml"], series)
    assert done.returncode != 0
    assert "found duplicate series for the match group" in done.stdout + done.stderr
