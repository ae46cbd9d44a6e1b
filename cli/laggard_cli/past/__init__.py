"""What the rules said at a time in the past, which Prometheus does not keep."""
