"""The panels of all dashboards, and their queries as Grafana would send them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.__main__ import FOLDER
from dashboards.boards import BOARDS

_JSON = {board.uid: json.loads((FOLDER / f"{board.uid}.json").read_text(encoding="utf-8")) for board in BOARDS}
#: Variables whose values are the answer to a query: the query by the name, and by the name the label.
CHOSEN = {
    variable["name"]: (match[1], variable["regex"].strip("/").partition("=")[0])
    for board in _JSON.values()
    for variable in board["templating"]["list"]
    if variable["type"] == "query" and (match := re.fullmatch(r"query_result\((.*)\)", variable["query"]["query"]))
}
#: What Grafana fills in, where a test does not say otherwise.
VALUES = {
    "$cluster": "",
    "$training_run": "run",
    "$uuid": ".*",
    **{f"${name}": ".*" for name in CHOSEN},
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
    """Return a query with its variables filled in. Raises :class:`ValueError` where one is left."""
    for name, value in {**VALUES, **{f"${name}": value for name, value in values.items()}}.items():
        expr = expr.replace(name, value)
    if re.search(r"\$[a-zA-Z_{]", expr):
        raise ValueError(f"a variable has no value: {expr}")
    return expr


PANELS = [NamedPanel(uid, panel) for uid, board in _JSON.items() for panel in board["panels"] if panel["type"] != "row"]
