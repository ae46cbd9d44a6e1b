"""Other names for the pack's labels, where a pipeline renames what ranks and exporters say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from laggard.conventions import IDENTITY, Attribute, prometheus_label
from laggard_cli.rules.profiles import RulesError

#: Labels that may be renamed: who, where, and which device.
RENAMED = (*map(prometheus_label, (*IDENTITY, Attribute.PHASE, Attribute.HOST_NAME)), "uuid")

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: A string, or a word: a metric, a function, a keyword, a label. No label of the pack is also one of the others.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"' r"|'(?:\\.|[^'\\])*'" r"|[a-zA-Z_:][\w:]*")
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_LABEL = re.compile(r"\$labels\.\w+")
#: Annotations that lead elsewhere: the variables of a dashboard keep their names.
_LINKS = ("runbook_url", "dashboard_url")


def parse_names(pairs: list[str]) -> dict[str, str]:
    """Return label to new name from ``OLD=NEW`` each.

    Raises:
        RulesError: no such label, no label's name, or one name for two labels.
    """
    names: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if old not in RENAMED:
            raise RulesError(f"label {pair!r}: {old!r} cannot be renamed; give OLD=NEW with {', '.join(RENAMED)}")
        if not _NAME.fullmatch(new) or new.startswith("__"):
            raise RulesError(f"label {pair!r}: {new!r} is no label's name; give OLD=NEW")
        if new in names.values() or (new in RENAMED and new != old):
            raise RulesError(f"label {pair!r}: two labels would be called {new}")
        names[old] = new
    return names


def rename(rule: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename labels in one rule: its expression, its own labels, and the templates of its annotations."""
    if not names:
        return
    rule["expr"] = _renamed(rule["expr"], names)
    if "labels" in rule:
        rule["labels"] = {names.get(label, label): value for label, value in rule["labels"].items()}
    for name, text in rule.get("annotations", {}).items():
        pattern = _LABEL if name in _LINKS else _TEMPLATE
        rule["annotations"][name] = pattern.sub(lambda match: _words(match[0], names), text)


def _renamed(expression: str, names: Mapping[str, str]) -> str:
    """Rename in an expression: words, and strings that are a label's name, which label_replace has."""

    def token(match: re.Match[str]) -> str:
        text = match[0]
        if text[0] in "\"'":
            return f"{text[0]}{names.get(text[1:-1], text[1:-1])}{text[0]}"
        return names.get(text, text)

    return _TOKEN.sub(token, expression)


def _words(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"[a-zA-Z_:][\w:]*", lambda match: names.get(match[0], match[0]), text)
