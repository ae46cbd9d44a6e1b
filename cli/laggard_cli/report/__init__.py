"""``laggard report``: one page about a run, for an incident or for the record."""
