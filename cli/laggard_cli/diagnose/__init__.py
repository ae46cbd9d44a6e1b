"""``laggard diagnose``: the rules' verdicts on a run, as data and as text."""
