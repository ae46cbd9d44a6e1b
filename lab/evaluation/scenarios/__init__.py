"""The scenarios: what goes wrong, what must be said of it, and for which alerts it is a near miss.

A new alert takes an entry here, of each kind: faults that it must name, and what only looks like one. One module for
each family; consequences.py adds what follows from a case beside what it is about.
"""

from lab.evaluation.scenarios import (
    bound,
    ends,
    goodput,
    gpu,
    hangs,
    healthy,
    memory,
    numbers,
    pipeline,
    several,
    shapes,
    stages,
    stragglers,
    surroundings,
    telemetry,
    trends,
    unsteady,
)
from lab.evaluation.scenarios.registry import ALL, SCENARIOS

__all__ = [
    "ALL",
    "SCENARIOS",
    "bound",
    "ends",
    "goodput",
    "gpu",
    "hangs",
    "healthy",
    "memory",
    "numbers",
    "pipeline",
    "several",
    "shapes",
    "stages",
    "stragglers",
    "surroundings",
    "telemetry",
    "trends",
    "unsteady",
]
