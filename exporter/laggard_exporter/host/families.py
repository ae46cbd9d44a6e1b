"""What the metrics of the host's collectors have in common: they carry ``host_name``, as the ranks call their host."""

from __future__ import annotations

from typing import Literal

from laggard_exporter.samples import Family

HOST = "host_name"


def family(name: str, kind: Literal["counter", "gauge"], text: str, *labels: str) -> Family:
    """Return a family of the host's."""
    return Family(f"host_{name}", kind, text, (HOST, *labels))
