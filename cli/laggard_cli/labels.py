"""Other names for the pack's labels, where a site renames them or calls its clusters by another label."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from laggard.shared.attributes import IDENTITY, Attribute
from laggard.shared.names import prometheus_label
from laggard_cli.errors import CommandError

#: What a site names each of its clusters by; no series of ours has it by itself.
CLUSTER = "cluster"

#: Labels that may be renamed: in which cluster, who, where, and which device.
RENAMED = (CLUSTER, *map(prometheus_label, (*IDENTITY, Attribute.PHASE, Attribute.HOST_NAME)), "uuid")

T = TypeVar("T")

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: A string, or a word: a metric, a function, a keyword, a label. No label of the pack is also one of the others.
_TOKEN = re.compile(r'[=~]?\s*"(?:\\.|[^"\\])*"' r"|[=~]?\s*'(?:\\.|[^'\\])*'" r"|[a-zA-Z_:][\w:]*")
_QUOTES = ("'", '"')
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_LABEL = re.compile(r"\$labels\.\w+")
#: Annotations that lead elsewhere: the variables of a dashboard keep their names.
_LINKS = ("runbook_url", "dashboard_url")


def add_labels(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--label``."""
    parser.add_argument("--label", action="append", default=[], metavar="OLD=NEW", help=f"{what}; may be repeated")


def parse_names(pairs: list[str]) -> dict[str, str]:
    """Return label to new name from ``OLD=NEW`` each.

    Raises:
        CommandError: no such label, no label's name, or one name for two labels.
    """
    names: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if old not in RENAMED:
            raise CommandError(f"label {pair!r}: {old!r} cannot be renamed; give OLD=NEW with {', '.join(RENAMED)}")
        if not _NAME.fullmatch(new) or new.startswith("__"):
            raise CommandError(f"--label must be OLD=NEW with names of labels, got {pair!r}")
        if new in names.values() or (new in RENAMED and new != old):
            raise CommandError(f"label {pair!r}: two labels would be called {new}")
        names[old] = new
    return names


def rename(rule: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename labels in one rule: its expression, its own labels, and the templates of its annotations."""
    if not names:
        return
    rule["expr"] = renamed(rule["expr"], names)
    if "labels" in rule:
        rule["labels"] = {names.get(label, label): value for label, value in rule["labels"].items()}
    if "annotations" in rule:
        rule["annotations"] = in_templates(rule["annotations"], names)


def in_templates(annotations: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return annotations whose templates have the labels under other names."""
    return {
        name: in_template(text, names, _LABEL if name in _LINKS else _TEMPLATE) for name, text in annotations.items()
    }


def in_template(text: str, names: Mapping[str, str], pattern: re.Pattern[str] = _TEMPLATE) -> str:
    """Rename in the actions of a template, or in another part of it."""
    return pattern.sub(lambda match: in_words(match[0], names), text)


def renamed(expression: str, names: Mapping[str, str]) -> str:
    """Rename in an expression: words, and strings that are a label's name, which label_replace has.

    What a matcher compares a label with is a value, whatever it is.
    """

    def token(match: re.Match[str]) -> str:
        text = match[0]
        if not text.endswith(_QUOTES):
            return names.get(text, text)
        if text[0] in "=~":
            return text
        name = text.strip()[1:-1]
        return text.replace(name, names[name]) if name in names else text

    return _TOKEN.sub(token, expression) if names else expression


def in_ours(labels: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    """Return labels under the pack's names. What somebody else has under such a name is left out."""
    if not names:
        return dict(labels)
    ours = {new: old for old, new in names.items()}
    kept = {name: text for name, text in labels.items() if name not in names}
    return {ours.get(name, name): text for name, text in kept.items()}


def in_words(text: str, names: Mapping[str, str]) -> str:
    """Rename in a text all of whose words may be labels."""
    return re.sub(r"[a-zA-Z_:][\w:]*", lambda match: names.get(match[0], match[0]), text)
