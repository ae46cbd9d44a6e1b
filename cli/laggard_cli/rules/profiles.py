"""``profiles.yaml``: how long each interval, window and wait of the rule pack is in each profile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from promql_parser import display_duration, parse_duration

from laggard_cli.nearby import did_you_mean

PROFILES = "profiles.yaml"

#: The profile in which the rule files themselves are written.
PRODUCTION = "production"


class RulesError(ValueError):
    """The rule pack, or what was asked of it, is not as it must be; the text names the place and what to do."""


@dataclass(frozen=True)
class Profile:
    """One column of the table."""

    name: str
    scrape_interval: timedelta
    evaluation_interval: timedelta
    #: Production's durations and what they become.
    durations: dict[timedelta, timedelta]
    #: Production's intervals of groups to those whose groups they are evaluated as often as.
    intervals: dict[timedelta, timedelta]
    #: Thresholds that differ from production's.
    thresholds: dict[str, float]
    #: Annotation to the address with which it begins in the rule files.
    links: dict[str, str]

    def duration(self, production: timedelta, place: str) -> timedelta:
        """Return what a duration of the rule files becomes.

        Raises:
            RulesError: the table has no such duration.
        """
        try:
            return self.durations[production]
        except KeyError:
            text = display_duration(production)
            raise RulesError(f"{place}: {PROFILES} has no duration {text}; add it there for each profile") from None

    def interval(self, production: timedelta, place: str) -> timedelta:
        """Return what the interval of a group becomes.

        Raises:
            RulesError: the table has no such duration.
        """
        return self.duration(self.intervals.get(production, production), place)


def load_profile(folder: Path, name: str) -> Profile:
    """Read one profile of the rule pack in ``folder``.

    Raises:
        RulesError: no such profile, or two lines for one duration.
    """
    table: dict[str, Any] = yaml.safe_load((folder / PROFILES).read_text(encoding="utf-8"))
    profiles: dict[str, dict[str, str]] = table["profiles"]
    if name not in profiles:
        there = f"{PROFILES} has {', '.join(profiles)}"
        raise RulesError(f"no profile {name!r}{did_you_mean(name, profiles, there)}")
    column = profiles[name].get("durations", name)
    durations: dict[timedelta, timedelta] = {}
    for row in table["durations"]:
        production = parse_duration(row[PRODUCTION])
        if production in durations:
            raise RulesError(f"{PROFILES}: two lines for the duration {row[PRODUCTION]}")
        durations[production] = parse_duration(row[column])
    return Profile(
        name=name,
        scrape_interval=parse_duration(profiles[name]["scrape_interval"]),
        evaluation_interval=parse_duration(profiles[name]["evaluation_interval"]),
        durations=durations,
        intervals={
            parse_duration(production): parse_duration(like)
            for production, like in table["intervals"].get(name, {}).items()
        },
        thresholds=table["thresholds"].get(name, {}),
        links=table["links"],
    )
