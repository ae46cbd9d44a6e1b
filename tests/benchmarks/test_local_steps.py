"""A job with ``laggard run --local`` and without: it trains the same, bit by bit."""

from __future__ import annotations

from lab.benchmarks.local_steps import BARE, LOCAL, RANKS, train


def test_losses_are_bit_identical() -> None:
    """Two ranks with dropout, a shuffled loader and AdamW: no draw of a random number is ours, and no update."""
    bare = train(BARE, steps=40).losses
    assert [len(losses) for losses in bare] == [40] * RANKS
    assert len({loss for losses in bare for loss in losses}) > 40
    assert train(LOCAL, steps=40).losses == bare
