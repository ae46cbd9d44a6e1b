"""Simulated runs: what they are like, how their steps go, and what their ranks and hosts expose."""
