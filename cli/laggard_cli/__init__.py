"""The command line of laggard: views over Prometheus, and the rule pack."""
