"""Steps far faster than the drain, with room for few events. Prints the most events that were ever kept."""

from __future__ import annotations

import time

import laggard
from laggard import _process


def main() -> None:
    """Take 20,000 steps with steps in which the drain catches up."""
    _process.CAPACITY = 100
    longest = 0
    for number in range(20_000):
        with laggard.step():
            if number % 5_000 == 0:
                time.sleep(1.1)
        process = _process.current()
        assert process is not None
        longest = max(longest, process.recorder.waiting)
    print(longest)


if __name__ == "__main__":
    main()
