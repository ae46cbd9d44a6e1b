"""Servers that laggard starts on this machine: what the demo, a replay and ``laggard run --local`` share."""
