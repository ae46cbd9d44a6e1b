"""``laggard demo``: the whole chain on one machine, with real faults and real verdicts."""
