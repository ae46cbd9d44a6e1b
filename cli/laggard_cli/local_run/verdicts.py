"""Verdicts on a local run while it lasts: each has a line when it begins, and one when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard_cli.diagnose.model import Verdict
from laggard_cli.report.costs import words

#: A verdict that comes back within this time was never over.
_GONE_SECONDS = 30.0


@dataclass
class Said:
    """A verdict with its time, in seconds since 1970."""

    verdict: Verdict
    """With the numbers of the last moment at which it held."""
    begin: float
    end: float | None = None
    """None where it holds, or held when the job ended."""
    over: bool = False
    """Whether it has been gone for long enough to stay away."""


class Verdicts:
    """Those of one run, in the order in which they began."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.all: list[Said] = []

    def update(self, firing: Sequence[Verdict], now: float) -> list[str]:
        """Take note of what fires now; return a line for each verdict that began or is over."""
        lines: list[str] = []
        found = {_key(verdict): verdict for verdict in firing if verdict.run in ("", self._run)}
        known = {_key(said.verdict): said for said in self.all if not said.over}
        for key, verdict in found.items():
            if key in known:
                known[key].verdict, known[key].end = verdict, None
            else:
                self.all.append(Said(verdict, now))
                lines.append(f"{verdict.severity}: {verdict.alert}: {verdict.summary}")
        for key in known.keys() - found.keys():
            said = known[key]
            said.end = said.end or now
            if now - said.end >= _GONE_SECONDS:
                said.over = True
                lines.append(f"over after {words(said.end - said.begin)}: {said.verdict.alert}{_whom(said.verdict)}")
        return lines


def _key(verdict: Verdict) -> tuple[str, ...]:
    # The host of a rank becomes known when the rank does to the node exporter, which may be later.
    return verdict.alert, verdict.rank, verdict.phase, "" if verdict.rank else verdict.host, verdict.peer_group


def _whom(verdict: Verdict) -> str:
    parts = [f"rank {verdict.rank}"] if verdict.rank else []
    parts += [f"phase {verdict.phase}"] if verdict.phase else []
    return f": {', '.join(parts)}" if parts else ""
