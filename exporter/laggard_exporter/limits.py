"""Limits of a process that reads what others wrote."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

#: Bytes of memory, less than the exporter's unit leaves it, and seconds of processor time.
MEMORY, SECONDS = 320 << 20, 5


def limit() -> None:
    """Limit what the present process may take, for its whole life."""
    # Where memory ends all the same, this process is killed and not the exporter.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))
