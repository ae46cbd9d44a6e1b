"""Thresholds and recommendations of the rule pack, which stand there and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from laggard_cli.pack import pack_folder

_TAG = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_PHASES = re.compile(r'eq \$labels\.training_phase((?: "\w+")+)')


def threshold(name: str) -> float:
    """Return a threshold's value. Raises :class:`KeyError` for one that the pack does not have."""
    return _read()[0][name]


def alert(name: str) -> dict[str, Any]:
    """Return an alert: ``labels`` and ``annotations``. Raises :class:`KeyError` for one that the pack does not have."""
    return _read()[1][name]


def recommendation(name: str, phase: str) -> str:
    """Return what an alert recommends where a phase is at fault; of a choice by anything else, its last part."""
    parts = _TAG.split(alert(name)["annotations"]["recommendation"])
    # Whether the branch that the text stands in is taken, and whether one before it was.
    taken = settled = True
    text: list[str] = [parts[0]]
    for tag, between in zip(parts[1::2], parts[2::2], strict=True):
        if tag.startswith(("if", "with")):
            taken = settled = _holds(tag, phase)
        elif tag.startswith("else if"):
            taken = not settled and _holds(tag, phase)
            settled = settled or taken
        elif tag == "else":
            taken = not settled
        else:
            taken = True
        if taken:
            text.append(between)
    return " ".join("".join(text).split())


def _holds(tag: str, phase: str) -> bool:
    found = _PHASES.search(tag)
    return found is not None and f'"{phase}"' in found[1].split()


def _rules() -> Iterator[dict[str, Any]]:
    for path in sorted(pack_folder("rules").glob("*.yml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), _LOADER)["groups"]:  # noqa: S506 - a safe one
            yield from group["rules"]


#: The one in C takes a tenth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def _read() -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    thresholds: dict[str, float] = {}
    alerts: dict[str, dict[str, Any]] = {}
    for rule in _rules():
        if rule.get("record") == "laggard_threshold" and str(rule["expr"]).startswith("vector("):
            thresholds.setdefault(rule["labels"]["name"], float(rule["expr"].removeprefix("vector(").rstrip(")")))
        elif "alert" in rule:
            alerts.setdefault(rule["alert"], rule)
    return thresholds, alerts
