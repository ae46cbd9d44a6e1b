"""What a collector's module ends with: what it tells, its metrics, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard_exporter.samples import Family

if TYPE_CHECKING:
    from laggard_exporter.flags import Options
    from laggard_exporter.runner import Collector


@dataclass(frozen=True)
class Entry:
    """One collector."""

    text: str
    """What it tells."""
    families: tuple[Family, ...]
    make: Callable[[Options], Collector]
