"""What travels with the command line: where rules and examples lie, and what the rules say."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

#: The one in C takes a tenth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def pack_folder(name: str) -> Path:
    """Return a folder of the pack: in an installation inside this package, in a checkout at its root."""
    package = Path(__file__).resolve().parent
    installed = package / "pack" / name
    return installed if installed.is_dir() else package.parents[1] / name


def read_yaml(path: Path) -> Any:
    """Return what a YAML file of the pack says."""
    return yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 - a safe one


@cache
def pack_rules() -> tuple[dict[str, Any], ...]:
    """Return every rule of the shipped files, as it stands there. Not to be changed: all callers share it."""
    rules: list[dict[str, Any]] = []
    for path in sorted(pack_folder("rules").glob("*.yml")):
        for group in read_yaml(path)["groups"]:
            rules += group["rules"]
    return tuple(rules)


#: Severities of the pack, the gravest first.
SEVERITIES = ("critical", "warning", "info")


def gravity(alert_name: str, severity: str) -> str:
    """Return which of :data:`SEVERITIES` an alert has.

    A site may have other words for them: then the pack says it of an alert of its own, and anything else is a warning.
    """
    if severity in SEVERITIES:
        return severity
    shipped = _alerts().get(alert_name)
    return str(shipped["labels"]["severity"]) if shipped else "warning"


def kind(alert_name: str) -> str:
    """Return what an alert is about, as its label ``training_kind`` says: ``hang``, ``speed``, …; empty if not ours."""
    shipped = _alerts().get(alert_name)
    return str(shipped["labels"]["training_kind"]) if shipped else ""


def threshold(name: str) -> float:
    """Return a threshold's value in the production profile. Raises :class:`KeyError` for one that the pack lacks."""
    return _thresholds()[name]


def alert(name: str) -> dict[str, Any]:
    """Return an alert: ``labels`` and ``annotations``. Raises :class:`KeyError` for one that the pack lacks."""
    return _alerts()[name]


@cache
def _thresholds() -> dict[str, float]:
    found: dict[str, float] = {}
    for rule in pack_rules():
        if rule.get("record") == "laggard_threshold" and str(rule["expr"]).startswith("vector("):
            found.setdefault(rule["labels"]["name"], float(rule["expr"].removeprefix("vector(").rstrip(")")))
    return found


@cache
def _alerts() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for rule in pack_rules():
        if "alert" in rule:
            found.setdefault(rule["alert"], rule)
    return found
