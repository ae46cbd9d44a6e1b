"""The JSON of a dashboard: in the SDK's own words, with keys in a stable order."""

from __future__ import annotations

import json
from typing import Any

from dashboards.sdk import encoder

#: What the SDK writes though Grafana's schema has it for other kinds of variable only.
_FOREIGN = ("auto", "auto_min", "auto_count", "definition")


#: The oldest Grafana that reads the classic form as it is written here.
_GRAFANA = "10.0.0"


def shareable(text: str) -> str:
    """Return an encoded dashboard as grafana.com takes it: with the list of what it needs, which its catalogue shows.

    There is nothing to fill in at an import: the data source is a variable of the dashboard.
    """
    board = json.loads(text)
    panels = sorted({panel["type"] for panel in board["panels"]} - {"row"})
    board["__inputs"], board["__elements"], board["id"] = [], {}, None
    board["__requires"] = [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _GRAFANA},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        *({"type": "panel", "id": panel, "name": panel, "version": ""} for panel in panels),
    ]
    return json.dumps(board, indent=2, sort_keys=True) + "\n"


def encode(dashboard: Any) -> str:
    """Return the classic form of a dashboard, which every Grafana since version 10 imports."""
    board = json.loads(encoder.JSONEncoder().encode(dashboard))
    for variable in board["templating"]["list"]:
        for name in _FOREIGN:
            variable.pop(name, None)
    for panel in board["panels"]:
        if panel["type"] == "table":
            del panel["options"]["footer"]  # of versions before 13, and empty
    return json.dumps(board, indent=2, sort_keys=True) + "\n"
