"""``laggard replay``: the shipped rules over a recording, and the score against what is known of it."""
