"""Ranks that answer requests for a profile with traces that are there already, until the input ends.

python -m tests.cli.answering_ranks FOLDER TRACE…: each trace is a rank's, from 0 on.
"""

from __future__ import annotations

import select
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from laggard.shared import control, statefile
from tests.support.facts import FACTS

RUN = "llama-7b"


def main() -> None:
    """Take every request at once, and write two seconds later."""
    folder, traces = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    writers = [
        statefile.StateWriter(folder, replace(FACTS, run=RUN, rank=rank, world_size=len(traces)))
        for rank in range(len(traces))
    ]
    print("ready", flush=True)
    answered: set[str] = set()
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        files = [folder / f"{RUN}-{rank}{control.REQUEST_SUFFIX}" for rank in range(len(traces))]
        if not all(file.exists() for file in files):
            continue
        requests = [control.read_request(file) for file in files]
        if requests[0].id in answered:
            continue
        answered.add(requests[0].id)
        _reply(folder, requests, "accepted")
        time.sleep(2)
        for request, trace in zip(requests, traces, strict=True):
            shutil.copy(trace, request.path)
        _reply(folder, requests, "done")
    for writer in writers:
        writer.close()


def _reply(folder: Path, requests: list[control.Request], status: str) -> None:
    for rank, request in enumerate(requests):
        answer = control.Reply(request.id, status)  # type: ignore[arg-type] - a literal of it
        control.write(folder / f"{RUN}-{rank}{control.REPLY_SUFFIX}", answer)


if __name__ == "__main__":
    main()
