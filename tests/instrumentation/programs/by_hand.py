"""A loop that laggard cannot see from outside, instrumented by hand in three lines."""

from __future__ import annotations

import json
import sys
import time

import laggard


def main() -> None:
    """Take 40 steps, of which the 38th is slow. Prints mean seconds of the steps and of their data phase."""
    laggard.instrument()
    steps: list[float] = []
    fetches: list[float] = []
    for number in range(40):
        began = time.perf_counter()
        with laggard.step():
            with laggard.phase("data"):
                fetch_began = time.perf_counter()
                time.sleep(0.02)
                fetches.append(time.perf_counter() - fetch_began)
            time.sleep(0.3 if number == 37 else 0.03)
            with laggard.phase("no such phase"):
                pass
        steps.append(time.perf_counter() - began)
        time.sleep(0.01)  # between two steps: belongs to none
    counted = slice(3, None)  # after the warm-up
    mean = [sum(times[counted]) / len(times[counted]) for times in (steps, fetches)]
    # One more drain, so that the slow step's trace finds a median.
    time.sleep(1.2)
    print(json.dumps(mean))
    if "uninstrument" in sys.argv:
        laggard.uninstrument()


if __name__ == "__main__":
    main()
