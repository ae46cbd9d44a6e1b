"""Which devices a collector looks at."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Filter:
    """Regular expressions that must match a whole name. Empty ones are not asked."""

    include: str = ""
    exclude: str = ""

    def __post_init__(self) -> None:
        for text in (self.include, self.exclude):
            re.compile(text)

    def admits(self, name: str) -> bool:
        """Return whether the collector looks at this device."""
        if self.include and not re.fullmatch(self.include, name):
            return False
        return not (self.exclude and re.fullmatch(self.exclude, name))
