"""What is known of a run, and what is said of ranks that no verdict reaches. No diagnosis is made here."""

from __future__ import annotations

from dataclasses import dataclass, field

from laggard_cli.diagnose.ended import Ended
from laggard_cli.diagnose.held_back import HeldBack
from laggard_cli.pack import gravity

#: Reasons for which a rank is not compared that are named elsewhere too.
FEW_STEPS, MANY, NO_SIGNAL = "few_steps", "many", "no_signal"
#: What each reason means, of the ranks that have it.
_REASONS = {
    "no_metrics": "none of its metrics has arrived for 5 minutes",
    "no_steps": "no step that counts has ended for 5 minutes",
    FEW_STEPS: "fewer than 16 steps of every rank in half an hour",
    "outside_window": "no recent step: scraped too rarely, or standing still",
    NO_SIGNAL: "cannot tell its waiting from its own work",
}


@dataclass(frozen=True)
class Verdict:
    """One firing alert. ``rank``, ``phase`` and ``host`` are empty where the verdict concerns the whole run."""

    alert: str
    severity: str
    run: str
    rank: str
    phase: str
    host: str
    since: str
    """Time at which the alert became active, as Prometheus writes it (RFC 3339)."""
    value: float | None
    """What the rule's expression gave; None where that is not known any more."""
    summary: str
    description: str
    recommendation: str
    runbook_url: str
    peer_group: str = ""
    """The group of ranks that is compared within, such as a stage of a pipeline, where the verdict is on one."""
    cluster: str = ""
    """What the site calls the cluster of the run, where its series say so."""

    @property
    def gravity(self) -> str:
        """``critical``, ``warning`` or ``info``, whatever a site calls them."""
        return gravity(self.alert, self.severity)


@dataclass(frozen=True)
class Rank:
    """One rank's own time and its wait for peers, in seconds per step."""

    rank: str
    own_seconds: float
    wait_seconds: float | None


@dataclass(frozen=True)
class Failure:
    """How a run ended that did not end cleanly: by the rank that ended first; who that was is empty where not known."""

    rank: str
    host: str
    phase: str
    ended_by: str
    """``exception``, ``exit``, ``signal``; ``unknown`` without a word, ``unseen`` where nobody knows when either."""
    ended_with: str
    """Class of the exception, exit code or name of the signal."""
    at: str
    """Time of the end (RFC 3339)."""
    ended_after: str = ""
    """``stall`` where the run had stood still before; else empty."""
    only: str = ""
    """The one rank that is known to have failed, where it is not known which ended first."""
    finished: tuple[str, ...] = ()
    """The ranks that ended cleanly, where it is not known which ended first."""


@dataclass(frozen=True)
class Diagnosis:
    """One run. A fact that is not recorded is missing from ``facts``, never 0."""

    run: str
    verdicts: tuple[Verdict, ...]
    facts: dict[str, float]
    ranks: tuple[Rank, ...]
    standing_out: dict[str, float] = field(default_factory=dict[str, float])
    """How many times its peers' own time each rank needs that is slow now; where that lasts, a verdict follows."""
    held_back: HeldBack | None = None
    """What a verdict on the rank that stands out most waits for, where it has none."""
    excluded: dict[str, float] = field(default_factory=dict[str, float])
    """Steps of the last 5 minutes that were excluded, by reason; asked for where no rank has an own time."""
    unread: str = ""
    """What keeps the rules from reading its metrics; asked for where its ranks' own times or waits are not known."""
    uncompared: dict[str, float] = field(default_factory=dict[str, float])
    """Ranks that live and are not compared, by reason."""
    uncompared_ranks: dict[str, str] = field(default_factory=dict[str, str])
    """Which these are, each with its reason, where they are few."""
    failing: str = ""
    """Which of the rules fail, of a run without a verdict: what would have been one may be among them."""

    cluster: str = ""
    """What the site calls its cluster; empty where its series do not say."""
    failure: Failure | None = None
    """How it failed, of a run of which nothing lives."""
    ended: Ended | None = None
    """When and how it ended, of one that was asked for by its name and is not known any more."""
    see: tuple[str, ...] = ()
    """What to type to see a run that has ended as it was."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What the judgement of a run needs and Prometheus does not have, of the run and of some of its ranks."""
        return (*self.unjudged, *self.left_out)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What no verdict reaches, and why: ranks that are not compared, and what rules that fail would say."""
        return (*self._not_compared(), *self._unseen(), *((self.failing,) if self.failing else ()))

    def _not_compared(self) -> tuple[str, ...]:
        live, compared = self.facts.get("ranks_live", 0), len(self.ranks)
        reasons = self._by_reason()
        if not compared:
            # Those that keep the others from being compared, if that is why nobody is.
            kept = reasons.pop(FEW_STEPS, [])
            count = sum(map(len, reasons.values())) if kept else 0
        else:
            # What is recorded each minute may not know yet of a rank that is gone since, or came.
            count = max(sum(self.uncompared.values()), live - compared)
        if count <= 0:
            return ()
        said = f"{count:.0f} of {max(live, count):.0f} ranks {'is' if count == 1 else 'are'} not compared"
        named = ", ".join(f"{_listed(ranks)} ({_REASONS.get(reason, reason)})" for reason, ranks in reasons.items())
        return (f"{said}: {named}" if named else said,)

    def _unseen(self) -> tuple[str, ...]:
        """Say that ranks of a run without a verdict are gone, as for the seconds before there is one on their death."""
        expected = self.facts.get("ranks_expected", 0)
        seen = max(self.facts.get("ranks_live", 0), len(self.ranks)) + self.facts.get("ranks_finished", 0)
        if self.verdicts or expected <= seen:
            return ()
        are, whom = ("is", "it") if expected - seen == 1 else ("are", "them")
        return (f"{expected - seen:.0f} of {expected:.0f} ranks {are} not seen, so nothing is said of {whom}",)

    def _by_reason(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for rank, reason in self.uncompared_ranks.items():
            found.setdefault(reason, []).append(rank)
        return found

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Why nothing is said of the run as a whole."""
        if self.failure is not None or self.ended is not None:
            return ()
        missing: list[str] = []
        if "ranks_live" not in self.facts:
            missing.append(
                "no live rank: the run has ended, or its ranks and node exporters are not scraped, or too rarely"
            )
        elif self.unread:
            missing.append(self.unread)
        elif not self.ranks and self.excluded:
            reasons = sorted(self.excluded.items(), key=lambda each: -each[1])
            listed = ", ".join(f"{reason} {count:.0f}" for reason, count in reasons)
            missing.append(
                f"no step is measured: all steps of the last 5 minutes are excluded ({listed}). A step with a first "
                "batch, a compilation or a warm-up says nothing of the others"
            )
        elif not self.ranks:
            missing.append("no own times yet: they need 16 steps of every rank after the warm-up, within half an hour")
        elif "ranks_waiting_known" not in self.facts:
            missing.append(
                "at least one rank cannot separate its waiting from its own work, or is not known yet to do so; a new "
                "run is checked once a minute"
            )
        elif len(self.ranks) > 1 and all(rank.wait_seconds is None for rank in self.ranks):
            missing.append("who waits for whom is not known yet; waits are recorded once a minute")
        return tuple(missing)


def _listed(ranks: list[str]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}"
