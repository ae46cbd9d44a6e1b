"""A rank's last steps, as the instrumentation writes them in the trace event format."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from laggard.shared.phases import Phase
from laggard_cli.errors import CommandError

#: Larger is no file of the last steps of a rank.
_MAX_BYTES = 64 * 2**20
_WAIT = Phase.COMMUNICATION.label


@dataclass(frozen=True)
class RankTrace:
    """Where a rank's steps are, and when it left the last collective of each. Times are microseconds since 1970."""

    path: Path
    run: str
    host: str
    rank: int
    #: Number of a step to the end of the last wait for peers in it; without the steps in which there was none.
    left: dict[int, int]
    steps: int


def events_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what a file says of its rank, and its events.

    Raises:
        CommandError: it cannot be read or is no trace of steps.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CommandError(f"{path}: larger than {_MAX_BYTES >> 20} MB; a trace of the last steps is not")
        content: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: no JSON: {error}") from error
    found = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    facts, events = found.get("otherData"), found.get("traceEvents")
    if not isinstance(events, list) or not isinstance(facts, dict) or not {"run", "host"} <= facts.keys():
        raise CommandError(f"{path}: no trace that a rank wrote of its last steps (laggard.dump_trace)")
    for event in cast("list[Any]", events):
        if not _is_event(event):
            raise CommandError(f"{path}: an event must be one of a trace of steps, got {json.dumps(event)[:80]}")
    return cast("dict[str, Any]", facts), cast("list[dict[str, Any]]", events)


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict):
        return False
    fields = cast("dict[str, Any]", event)
    arguments: Any = fields.get("args", {})
    if not isinstance(fields.get("name"), str) or not isinstance(arguments, dict):
        return False
    whole = [fields.get(name) for name in (("pid", "ts", "dur") if fields.get("ph") == "X" else ("pid",))]
    if fields["name"] == "step":
        whole.append(cast("dict[str, Any]", arguments).get("step"))
    return all(type(value) is int for value in whole)


def read(path: Path) -> RankTrace:
    """Return what putting a rank's steps beside others' needs.

    Raises:
        CommandError: the file cannot be read or is no trace of one rank's steps.
    """
    facts, events = events_of(path)
    ranks = {event["pid"] for event in events}
    if len(ranks) != 1:
        raise CommandError(f"{path}: has the steps of {len(ranks)} ranks, not of one; give the files that ranks wrote")
    steps = {
        event["args"]["step"]: (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"] == "step" and event.get("ph") == "X"
    }
    ends = sorted(event["ts"] + event["dur"] for event in events if event["name"] == _WAIT and event.get("ph") == "X")
    left: dict[int, int] = {}
    for number, (began, ended) in steps.items():
        before = bisect_right(ends, ended)
        if before and ends[before - 1] > began:
            left[number] = ends[before - 1]
    return RankTrace(path, str(facts["run"]), str(facts["host"]), ranks.pop(), left, len(steps))
