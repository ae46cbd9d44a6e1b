"""The JSON of a dashboard: in the SDK's own words, with keys in a stable order."""

from __future__ import annotations

import json
from typing import Any

from dashboards.sdk import encoder


def encode(dashboard: Any) -> str:
    """Return the classic form of a dashboard, which every Grafana since version 10 imports."""
    return json.dumps(json.loads(encoder.JSONEncoder().encode(dashboard)), indent=2, sort_keys=True) + "\n"
