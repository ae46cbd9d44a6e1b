"""``make evaluate``: how often the shipped rules are right, on simulated runs of which the truth is known."""
