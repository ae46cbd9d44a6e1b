"""``laggard hang``: who does not join a collective, from a folder of flight-recorder dumps."""
