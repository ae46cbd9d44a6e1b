"""``laggard doctor``: what of laggard does not work in a monitoring server, why, and what to do."""
