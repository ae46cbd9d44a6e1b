"""How a name of laggard's becomes one in Prometheus, on every path in the same way.

Dots become underscores, the unit is appended, counters end in ``_total``.
"""

from __future__ import annotations

from laggard.shared.metrics import Metric

#: A run's or a host's name is cut to this many UTF-8 bytes, in labels and in the state file.
NAME_BYTES = 128

_UNIT_SUFFIX = {"s": "seconds", "By": "bytes", "J": "joules"}


def prometheus_label(attribute: str) -> str:
    """Return the Prometheus label of an attribute: every path replaces the dots."""
    return attribute.replace(".", "_")


def prometheus_name(metric: Metric) -> str:
    """Return the metric's name in Prometheus, without the ``_bucket``, ``_sum`` and ``_count`` of a histogram."""
    name = metric.name.replace(".", "_")
    suffix = _UNIT_SUFFIX.get(metric.unit)
    if suffix is not None and not name.endswith("_" + suffix):
        name = f"{name}_{suffix}"
    return f"{name}_total" if metric.kind == "counter" else name


def run_name(text: str) -> str:
    """Return the name under which ranks report a run that somebody calls so."""
    return clip_name(text.strip()).strip()


def clip_name(text: str, limit: int = NAME_BYTES) -> str:
    """Return ``text`` with a blank for what cannot be printed on one line, cut to ``limit`` UTF-8 bytes.

    Never inside a character.
    """
    if not text.isprintable():
        text = "".join(each if each.isprintable() else " " for each in text)
    return text.encode()[:limit].decode("utf-8", "ignore")
