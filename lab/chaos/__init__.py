"""Breaks real training jobs, and laggard itself, and holds what the alerts say against what was broken."""
