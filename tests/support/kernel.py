"""What this machine's kernel tells the node exporter."""

from __future__ import annotations

import platform
import re


def said(what: str) -> str:
    """Return what the kernel says of the end of a process that did not: nothing before Linux 6.15."""
    return what if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 15) else ""
