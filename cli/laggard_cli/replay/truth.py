"""What is known of a run, and how what fired compares with it.

A truth file is YAML or JSON; times are seconds since the start of the recording:

    runs:
      my-run:
        expected:
          - {alert: TrainingStraggler, ranks: [3], phase: forward, from: 300}
        allowed: [TrainingTelemetryDown]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from laggard_cli.errors import CommandError

#: What fires at most this long after a fault's end still belongs to it.
GRACE_SECONDS = 300.0


@dataclass(frozen=True)
class Expected:
    """An alert that must fire, once for each rank, or for the run where there are none. ``phase`` may be unknown."""

    alert: str
    ranks: frozenset[str] = frozenset()
    phase: str = ""
    begin: float = 0.0
    end: float = float("inf")


@dataclass(frozen=True)
class Truth:
    """What must fire for a run, and what may. Anything else above info is wrong."""

    run: str
    expected: tuple[Expected, ...] = ()
    allowed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Fired:
    """An alert that fired, from when to when, in seconds since the start of the recording."""

    alert: str
    severity: str
    run: str
    rank: str = ""
    phase: str = ""
    begin: float = 0.0
    end: float = float("inf")


@dataclass(frozen=True)
class Outcome:
    """One alert of one run and rank, as it was and as it should have been."""

    kind: Literal["found", "missed", "wrong rank", "false"]
    alert: str
    run: str
    rank: str = ""
    #: Seconds from the fault to the alert.
    delay: float | None = None
    #: False where another phase was named than the one at fault.
    phase_right: bool = True


@dataclass
class _Open:
    expected: Expected
    rank: str
    found: list[Fired] = field(default_factory=list[Fired])


def judge(truth: Truth, fired: Iterable[Fired]) -> list[Outcome]:
    """Compare what fired for a run with what is known of it.

    An alert without a rank does not settle an expectation with ranks: that is missed then, and the alert counts as
    naming a wrong rank.
    """
    wanted = [_Open(each, rank) for each in truth.expected for rank in sorted(each.ranks) or [""]]
    wrong: dict[tuple[str, str], Outcome] = {}
    for alert in fired:
        if alert.run != truth.run or alert.severity == "info":
            continue
        rivals = [each for each in wanted if each.expected.alert == alert.alert and _overlaps(each.expected, alert)]
        matches = [each for each in rivals if each.rank == alert.rank]
        for match in matches:
            match.found.append(alert)
        if not matches and alert.alert not in truth.allowed:
            kind = "wrong rank" if rivals else "false"
            wrong.setdefault((alert.alert, alert.rank), Outcome(kind, alert.alert, truth.run, alert.rank))
    return [_outcome(truth.run, each) for each in wanted] + list(wrong.values())


def _overlaps(expected: Expected, fired: Fired) -> bool:
    return fired.begin <= expected.end + GRACE_SECONDS and fired.end >= expected.begin


def _outcome(run: str, wanted: _Open) -> Outcome:
    expected = wanted.expected
    if not wanted.found:
        return Outcome("missed", expected.alert, run, wanted.rank)
    # The phase that was named for longest counts; one that is corrected at once does no harm.
    named = max(wanted.found, key=lambda fired: min(fired.end, expected.end) - fired.begin)
    return Outcome(
        "found",
        expected.alert,
        run,
        wanted.rank,
        delay=max(0.0, min(fired.begin for fired in wanted.found) - expected.begin),
        phase_right=not expected.phase or named.phase == expected.phase,
    )


def read_truth(path: Path, runs: Collection[str]) -> list[Truth]:
    """Return the truth about the runs of a recording.

    Raises:
        CommandError: the file is not as it must be, or names a run that is not in the recording.
    """
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = _mapping(_mapping(content, "the file", ("runs",)).get("runs"), "runs")
        known = {name: _truth(name, _mapping(entry, name, ("expected", "allowed"))) for name, entry in entries.items()}
    except OSError as error:
        raise CommandError(f"--truth {path}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise CommandError(f"--truth {path}: {' '.join(str(error).split())}") from error
    for name in known:
        if name not in runs:
            raise CommandError(f"--truth {path}: run {name!r} is not in the recording, which has {', '.join(runs)}")
    return list(known.values())


def _truth(run: str, entry: dict[str, Any]) -> Truth:
    expected: list[Expected] = []
    for each in cast("list[Any]", entry.get("expected") or []):
        fields = _mapping(each, f"{run}, expected", ("alert", "ranks", "phase", "from", "until"))
        if not isinstance(fields.get("alert"), str):
            raise ValueError(f"{run}, expected: 'alert' is missing")  # noqa: TRY004 - as below
        expected.append(
            Expected(
                alert=fields["alert"],
                ranks=frozenset(str(rank) for rank in cast("list[Any]", fields.get("ranks") or [])),
                phase=fields.get("phase") or "",
                begin=float(fields.get("from") or 0.0),
                end=float(fields.get("until") or "inf"),
            )
        )
    return Truth(run, tuple(expected), frozenset(entry.get("allowed") or ()))


def _mapping(value: Any, place: str, fields: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place} must be a mapping")  # noqa: TRY004 - one kind of error for the whole file
    found = {str(key): content for key, content in cast("dict[Any, Any]", value).items()}
    for name in found:
        if fields and name not in fields:
            raise ValueError(f"{place}: no field {name!r}; there are {', '.join(fields)}")
    return found
