"""``laggard trace``: the last steps of several ranks as one trace, on one clock."""
