"""A short cell of a notebook, and what is said of it at each time."""

from __future__ import annotations

import json
import time

import laggard


def cell() -> None:
    """Make 40 steps in less time than passes between two drains."""
    for _ in range(40):
        with laggard.step():
            with laggard.phase("data"):
                time.sleep(0.004)
            time.sleep(0.006)


def said() -> dict[str, object]:
    """Return the summary as plain values."""
    return laggard.summary().as_dict()


found = [said()]
laggard.instrument()
found.append(said())
cell()
found.append(said())
laggard.uninstrument()
found.append(said())
laggard.instrument()
found.append(said())
print(json.dumps(found))
