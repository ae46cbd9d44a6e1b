"""The JSON of a dashboard: in the SDK's own words, with keys in a stable order."""

from __future__ import annotations

import json
from typing import Any

from dashboards.sdk import encoder

#: What the SDK writes though Grafana's schema has it for other kinds of variable only.
_FOREIGN = ("auto", "auto_min", "auto_count", "definition")


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
