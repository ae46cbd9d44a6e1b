"""Thresholds and recommendations of the rule pack, which stand there and nowhere else."""

from __future__ import annotations

from functools import cache
from typing import Any

from laggard_cli.pack import pack_rules
from laggard_cli.past.templates import render


def threshold(name: str) -> float:
    """Return a threshold's value. Raises :class:`KeyError` for one that the pack does not have."""
    return _read()[0][name]


def alert(name: str) -> dict[str, Any]:
    """Return an alert: ``labels`` and ``annotations``. Raises :class:`KeyError` for one that the pack does not have."""
    return _read()[1][name]


def recommendation(name: str, phase: str) -> str:
    """Return what an alert recommends where a phase is at fault; a trace has no answers to a template's queries."""
    template = alert(name)["annotations"]["recommendation"]
    return " ".join(render(template, {"training_phase": phase}, 0.0, lambda _: []).split())


@cache
def _read() -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    thresholds: dict[str, float] = {}
    alerts: dict[str, dict[str, Any]] = {}
    for rule in pack_rules():
        if rule.get("record") == "laggard_threshold" and str(rule["expr"]).startswith("vector("):
            thresholds.setdefault(rule["labels"]["name"], float(rule["expr"].removeprefix("vector(").rstrip(")")))
        elif "alert" in rule:
            alerts.setdefault(rule["alert"], rule)
    return thresholds, alerts
