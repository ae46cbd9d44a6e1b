"""Trains for a moment, then ends in the way that the first argument says, and says when.

Steps are named by hand, or with a second argument ``torch`` are those of a model.
"""

from __future__ import annotations

import sys
import time

import laggard


def by_hand() -> None:
    """Take steps without torch."""
    for _ in range(30):
        with laggard.step():
            time.sleep(0.001)


def with_torch() -> None:
    """Take steps of a model."""
    import torch  # noqa: PLC0415 - only where it is asked for
    from torch import nn  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Take steps until there are metrics and spans to send, print the time, end."""
    if "torch" in sys.argv[2:]:
        with_torch()
    else:
        by_hand()
    time.sleep(1.2)  # a drain, so that spans wait to be sent
    print(f"{time.time()}", flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("on purpose")
    if sys.argv[1] == "wait":
        time.sleep(60)


if __name__ == "__main__":
    main()
