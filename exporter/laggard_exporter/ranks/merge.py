"""Merges pages in Prometheus' text format into one that is valid whatever a rank serves.

Pages are written by the processes of users. One bad line would cost Prometheus the whole scrape, so every line is
checked, and a page with a bad one is refused as a whole. A rank speaks of itself only: a series without run and rank
gets them, which keeps series of several ranks apart, and one of another rank is left out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from laggard_exporter.exposition import escape

#: Families of this prefix are the exporter's own.
_OWN = "laggard_exporter_"

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\[\\n"])*"'
_NUMBER = r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|Inf)|NaN"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*,?)?)\}})? ({_NUMBER})")
_META = re.compile(rf"# (HELP|TYPE) ({_NAME})(?: (.*))?")
_LABEL_NAME = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\[\\n"])*"')
_KINDS = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_SUFFIXES = frozenset({"", "_bucket", "_sum", "_count", "_created"})


class InvalidPageError(Exception):
    """A page cannot be merged; the text says what is wrong with it."""


@dataclass
class _Family:
    """All series of a name, of all ranks."""

    help: str
    kinds: set[str] = field(default_factory=set[str])
    lines: list[str] = field(default_factory=list[str])


class Merged:
    """The pages that were added, as one."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(self, page: str, run: str, rank: int) -> str:
        """Add a rank's page, or nothing of it; return the name of a metric that was left out, else an empty string.

        Raises :class:`InvalidPageError` for a page with anything that would spoil the others.
        """
        identity = f'training_run="{escape(run)}",training_rank="{rank}"'
        own = {f'training_run="{escape(run)}"', f'training_rank="{rank}"'}
        families: dict[str, _Family] = {}
        name, left_out = "", ""
        # Only this ends a line: names may hold other line breaks.
        for line in page.split("\n"):
            if sample := _SAMPLE.fullmatch(line):
                if sample[1] != name and sample[1].removeprefix(name) not in _SUFFIXES:
                    name = sample[1]
                _check(name, sample[3])
                labels = _labels(sample[2] or "", identity, own, line)
                if labels:
                    families.setdefault(name, _Family("")).lines.append(f"{sample[1]}{{{labels}}} {sample[3]}\n")
                else:
                    left_out = sample[1]
            elif meta := _META.fullmatch(line):
                name = meta[2]
                family = families.setdefault(name, _Family(""))
                if meta[1] == "HELP":
                    family.help = meta[3] or ""
                elif meta[3] in _KINDS and not family.lines:
                    family.kinds = {meta[3]}
                else:
                    raise InvalidPageError(f"has the line {line[:80]!r}")
            elif line and not line.startswith("#"):
                raise InvalidPageError(f"has the line {line[:80]!r}")
        for name, family in families.items():
            known = self._families.setdefault(name, _Family(family.help))
            known.kinds |= family.kinds or {""}
            known.lines += family.lines
        return left_out

    def text(self) -> str:
        """Return the page: each family once, with its help as the first rank has it."""
        parts: list[str] = []
        for name, family in self._families.items():
            # Ranks with other settings may serve a name as another type: then it has none, and no series is lost.
            if family.lines and len(family.kinds) == 1 and "" not in family.kinds:
                parts.append(f"# HELP {name} {family.help}\n# TYPE {name} {min(family.kinds)}\n")
            parts += family.lines
        return "".join(parts)


def _check(name: str, number: str) -> None:
    if name.startswith(_OWN):
        raise InvalidPageError(f"has {name}, a name of the exporter's own")
    # Prometheus refuses a number that is too large to be one.
    if math.isinf(float(number)) and not number.endswith("Inf"):
        raise InvalidPageError(f"has the number {number[:80]!r}")


def _labels(text: str, identity: str, own: set[str], line: str) -> str:
    """Return the labels with run and rank; empty for those of another rank."""
    pairs = {match[1]: match[0] for match in _LABEL_NAME.finditer(text)}
    if len(pairs) < sum(1 for _ in _LABEL_NAME.finditer(text)) or any(name.startswith("__") for name in pairs):
        raise InvalidPageError(f"has a label twice, or one that is reserved: {line[:80]!r}")
    named = {pairs[name] for name in ("training_run", "training_rank") if name in pairs}
    if named == own:
        return text
    if named:
        return ""
    return ",".join((*pairs.values(), identity))
