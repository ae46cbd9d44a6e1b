"""Runbooks: one for each alert, of one shape, with queries that work."""

from __future__ import annotations

import re

import promql_parser as promql
import pytest

from tests.rules import once
from tests.rules.pack import RULES, Labels, alerts, known

NAMES = sorted({rule.name for rule in alerts()})


def test_one_for_each_alert() -> None:
    """No alert is without its page, and no page without its alert."""
    assert sorted(path.stem for path in (RULES / "runbooks").glob("*.md")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_shape(name: str) -> None:
    """A page says what the alert means, what it costs, how to look closer and what to do."""
    text = (RULES / "runbooks" / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]


@pytest.mark.parametrize("name", NAMES)
def test_queries_use_our_series(name: str) -> None:
    """Every query of a page parses, uses series and labels that exist, and adds up one value for each rank."""
    text = (RULES / "runbooks" / f"{name}.md").read_text(encoding="utf-8")
    queries = re.findall(r"^```promql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(queries) >= 2
    for query in queries:
        Labels(known()).of(promql.parse(query))
        # What adds nothing up may show each path: then it shows as well whether there are two.
        # Who has several clusters says which one the run is of.
        asked = query.replace('training_run="RUN"', 'cluster="CLUSTER", training_run="RUN"')
        found = {each for each in once.mistakes(asked, once.pack_keys()) if each != once.EACH}
        assert not found or name in once.OF_PATHS
