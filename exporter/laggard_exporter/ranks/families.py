"""What the metrics of the collectors that look at the processes of ranks have in common: they carry run and rank."""

from __future__ import annotations

from typing import Literal

from laggard.shared.attributes import Attribute
from laggard.shared.names import prometheus_label
from laggard_exporter.samples import Family

IDENTITY = (prometheus_label(Attribute.RUN), prometheus_label(Attribute.RANK))


def family(name: str, kind: Literal["counter", "gauge"], text: str, *labels: str) -> Family:
    """Return a family of a rank's process."""
    return Family(f"training_process_{name}", kind, text, (*IDENTITY, *labels))
