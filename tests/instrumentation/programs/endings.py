"""Trains for a moment by hand, then ends in the way that the first argument says, and says when."""

from __future__ import annotations

import sys
import time

import laggard


def main() -> None:
    """Take steps until there are metrics and spans to send, print the time, end."""
    for _ in range(30):
        with laggard.step():
            time.sleep(0.001)
    time.sleep(1.2)  # a drain, so that spans wait to be sent
    print(f"{time.time()}", flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("on purpose")
    if sys.argv[1] == "wait":
        time.sleep(60)


if __name__ == "__main__":
    main()
