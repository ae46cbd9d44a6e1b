"""Reads one dump, from standard input, and prints its facts: in a process of its own, with limits.

A dump is somebody else's file: what it costs to read is the child's to bear, and it cannot do more than read.
Arguments: the folder of laggard_exporter, how many bytes a dump may have, and the rank that it is of.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

#: Bytes of memory, less than the exporter's unit leaves it, and seconds of processor time.
MEMORY, SECONDS = 320 << 20, 5


def _limit() -> None:
    # Where memory ends all the same, this process is killed and not the exporter.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))


if __name__ == "__main__":
    # Without site packages it is not found.
    sys.path.append(sys.argv[1])
    from laggard_exporter.hang.dump import DumpError, parse
    from laggard_exporter.hang.facts import as_json, facts

    _limit()
    try:
        sys.stdout.write(as_json(facts(parse(sys.stdin.buffer.read(int(sys.argv[2])), int(sys.argv[3])))))
    except DumpError as error:
        sys.exit(str(error))
