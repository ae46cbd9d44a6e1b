"""Very short steps for three seconds, one in eight of them four times as long. Prints how many steps it took."""

from __future__ import annotations

import time

import laggard

SECONDS = 3.0


def main() -> None:
    """Spin, so that a step is as long as it says."""
    laggard.instrument()
    number = 0
    ends = time.perf_counter() + SECONDS
    while time.perf_counter() < ends:
        with laggard.step(), laggard.phase("data"):
            began = time.perf_counter()
            while time.perf_counter() - began < (0.002 if number % 8 == 0 else 0.0005):
                pass
        number += 1
    print(number)


if __name__ == "__main__":
    main()
