"""The panels of all dashboards, and their queries as Grafana would send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.__main__ import FOLDER
from dashboards.boards import BOARDS

#: What Grafana fills in, where a test does not say otherwise.
VALUES = {
    "$training_run": "run",
    "$uuid": ".*",
    "$__rate_interval": "1m",
    "$__range": "1h",
}


@dataclass(frozen=True)
class NamedPanel:
    """A panel as it stands in the JSON of its dashboard."""

    uid: str
    json: Mapping[str, Any]

    @property
    def targets(self) -> list[dict[str, Any]]:
        """Its queries."""
        return self.json["targets"]

    def __str__(self) -> str:
        return f"{self.uid}: {self.json['title']}"


def concrete(expr: str, **values: str) -> str:
    """Return a query with its variables filled in."""
    for name, value in {**VALUES, **{f"${name}": value for name, value in values.items()}}.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


PANELS = [
    NamedPanel(board.uid, panel)
    for board in BOARDS
    for panel in json.loads((FOLDER / f"{board.uid}.json").read_text(encoding="utf-8"))["panels"]
    if panel["type"] != "row"
]
