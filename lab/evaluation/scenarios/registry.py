"""The table of scenarios, and the alerts that they are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.evaluation.draw import Draw
from lab.evaluation.model.job import Case
from laggard_cli.pack import pack_rules

#: Alerts that are judged: those of the pack, less the one that always fires. What else fires is listed, by scenario.
ALL = frozenset(str(rule["alert"]) for rule in pack_rules() if "alert" in rule) - {"LaggardWatchdog"}

Make = Callable[[Draw], Case]


@dataclass(frozen=True)
class Scenario:
    """How to make a case, and of what sizes: all of them, or so many cases a seed whose sizes are drawn."""

    make: Make
    cases: int | None = None
    #: Fewer ranks than these cannot show it.
    least: int = 2


SCENARIOS: dict[str, Scenario] = {}


def scenario(make: Make) -> Make:
    """Put a scenario into the table, under its function's name, to be played with all sizes."""
    SCENARIOS[make.__name__] = Scenario(make)
    return make


def drawn(cases: int, least: int = 2) -> Callable[[Make], Make]:
    """Put a scenario into the table that is played so many times for each seed, with sizes that are drawn."""

    def add(make: Make) -> Make:
        SCENARIOS[make.__name__] = Scenario(make, cases, least)
        return make

    return add
