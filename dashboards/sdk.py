"""Grafana's SDK without its types, which contradict themselves: members of its enumerations are typed as texts.

What is built is checked against Grafana's own schema instead.
"""

from __future__ import annotations

import importlib
from typing import Any


def _module(name: str) -> Any:
    return importlib.import_module(f"grafana_foundation_sdk.{name}")


#: Builders of the kinds of panel, and of what they share.
common, dashboard, heatmap, prometheus = (
    _module(f"builders.{name}") for name in ("common", "dashboard", "heatmap", "prometheus")
)
stat, statetimeline, table, timeseries = (
    _module(f"builders.{name}") for name in ("stat", "statetimeline", "table", "timeseries")
)
#: Plain values and enumerations.
models, shared, heat, prometheus_models = (
    _module(f"models.{name}") for name in ("dashboard", "common", "heatmap", "prometheus")
)
encoder = _module("cog.encoder")
