"""Clauses are taken out of the rules one by one: what rests on each is judged once more, and nothing else changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.evaluation.ablation import Clause, clauses, figures, groups_of, moves, play, rules_without
from lab.evaluation.plan import cases

_GROUPS: list[dict[str, Any]] = [
    {"name": "scores", "interval": "15s", "rules": [
        {"record": "laggard_threshold", "labels": {"name": "score"}, "expr": "vector(2)"},
        {"record": "run:x:veto", "labels": {"why": "hiccup"}, "expr": "a > 3  # long"},
        {"record": "run:x:veto", "labels": {"why": "noise"}, "expr": "a < 1"},
        {"record": "run:y:veto", "expr": "b"},
    ]},
    {"name": "alerts", "rules": [
        {"alert": "TrainingX", "expr": 'a > max(laggard_threshold{name="score"})\nunless run:x:veto'},
        {"alert": "TrainingY", "expr": "run:y:veto > run:x:veto_of_others"},
    ]},
]  # fmt: skip


def test_every_clause_is_in_the_pack() -> None:
    """Each rule is there once, and each text stands in its expression once."""
    rules = [rule for group in groups_of() for rule in group["rules"]]
    assert len(clauses()) > 80
    for clause in clauses():
        own = clause.among(rules)
        assert clause.without(own) != own, clause.name


def test_what_rests_on_a_clause_is_there_twice() -> None:
    """Its siblings and readers come again under names of their own; what has nothing to do with it goes."""
    whole = Clause("hiccup", "run:x:veto", {"why": "hiccup"})
    limit = Clause("score", "laggard_threshold", {"name": "score"}, instead="vector(0)")
    groups, alerts = rules_without(_GROUPS, [whole, limit], {"TrainingX", "TrainingY"})
    assert alerts == [{"TrainingX"}, {"TrainingX"}]
    assert groups == [
        {"name": "scores", "interval": "15s", "rules": [
            {"record": "laggard_threshold", "labels": {"name": "score"}, "expr": "vector(2)"},
            {"record": "laggard_threshold_without_1", "labels": {"name": "score"}, "expr": "vector(0)"},
            {"record": "run:x:veto", "labels": {"why": "hiccup"}, "expr": "a > 3  # long"},
            {"record": "run:x:veto", "labels": {"why": "noise"}, "expr": "a < 1"},
            {"record": "run:x:veto_without_0", "labels": {"why": "noise"}, "expr": "a < 1"},
        ]},
        {"name": "alerts", "rules": [
            {"alert": "TrainingX", "expr": 'a > max(laggard_threshold{name="score"})\nunless run:x:veto'},
            {"alert": "TrainingX@0", "expr": 'a > max(laggard_threshold{name="score"}) unless run:x:veto_without_0'},
            {"alert": "TrainingX@1", "expr": 'a > max(laggard_threshold_without_1{name="score"}) unless run:x:veto'},
        ]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("clause", "said"),
    [
        (Clause("c", "run:y:veto", text="a > 1"), "run:y:veto has 'a > 1' 0 times, not once"),
        (Clause("c", "TrainingY", text="run"), "TrainingY has 'run' 2 times, not once"),
        (Clause("c", "run:x:veto"), "there are 2 rules run:x:veto {}, not one"),
        (Clause("c", "run:z:veto"), "there are 0 rules run:z:veto {}, not one"),
    ],
)
def test_a_clause_that_is_not_there(clause: Clause, said: str) -> None:
    """A text that is not in its rule, or is there twice, and a rule that is not one are errors."""
    with pytest.raises(ValueError, match=f"^{re.escape(f'clause c: {said}')}$"):
        rules_without(_GROUPS, [clause], {"TrainingX", "TrainingY"})


def test_figures_that_move() -> None:
    """What moves by more than the limit is listed, most first; what is gone was moved to 0."""
    assert moves({"a": 0.9, "b": 0.5, "c": 1.0}, {"a": 0.9015, "b": 0.7, "c": 0.5}) == {
        "c": (1.0, 0.5),
        "b": (0.5, 0.7),
    }
    assert moves({"a": 0.9}, {}) == {"a": (0.9, 0.0)}


@pytest.mark.usefixtures("built")
def test_a_slow_rank_without_its_clauses(tmp_path: Path) -> None:
    """Without what makes a verdict it is missed; with a clause that says the same as before nothing moves."""
    score = "run_rank:training_straggler_score"
    given = [
        Clause("same", f"{score}:persistent", text=f"{score}:last and", instead=f"{score}:last and"),
        Clause("none", f"{score}:last"),
    ]
    groups, alerts = rules_without(groups_of(), given, {"TrainingStraggler"})
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": groups}), encoding="utf-8")
    records = dict(play((cases(42, ["slow_forward"], [4]), 42), path, alerts))
    assert records[0] == records[-1]
    with_it, without = (figures([records[number]], {"TrainingStraggler"}) for number in (-1, 1))
    assert moves(with_it, without)["TrainingStraggler recall"] == (1.0, 0.0)
