"""Recordings from the steps that the instrumentation writes as JSON lines: one rank's last steps in each file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from laggard.shared.attributes import Attribute
from laggard.shared.metrics import (
    COMMUNICATION_FLOOR,
    DATALOADER_FIRST_BATCH_DURATION,
    LAST_STEP_TIMESTAMP,
    PHASE_DURATION,
    RANK_START_TIMESTAMP,
    RANK_STATE,
    RANKS_EXPECTED,
    RECENT_STEPS,
    SIGNAL_AVAILABLE,
    SIGNALS,
    STEP_DURATION,
    STEP_OWN_DURATION,
    STEPS,
    STEPS_EXCLUDED,
)
from laggard.shared.names import prometheus_label, prometheus_name
from laggard.shared.phases import OWN_PHASES, Phase, RankState
from laggard_cli.errors import CommandError
from laggard_cli.replay.recording import Labels, Recording, Series

#: What a line must have, with its type. What else it has is not read.
_FIELDS = {"run": str, "rank": int, "step": int, "started_unix_ns": int, "duration_ns": int, "phases_ns": dict}
_PHASES = {phase.label: phase for phase in Phase}
#: What each number is below, and not negative; a step lasts a week at most.
_LIMITS = {"rank": 2**20, "step": 2**53, "started_unix_ns": 2**63, "duration_ns": 7 * 86_400 * 10**9}


def read_steps(path: Path, lines: Iterable[str]) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    """Return the steps in a file by run and rank.

    Raises:
        CommandError: a line is no step.
    """
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                step = parse_step(line)
            except ValueError as error:
                raise CommandError(f"{path}, line {number}: {error}") from None
            found.setdefault((step["run"], step["rank"]), []).append(step)
    return found


def parse_step(line: str) -> dict[str, Any]:
    """Return the step in a line.

    Raises:
        ValueError: it is none; the message says why.
    """
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("no JSON object") from None
    if not isinstance(content, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - one kind of error for the whole line
    step = cast("dict[str, Any]", content)
    if step and not step.keys() & _FIELDS.keys():
        raise ValueError(
            f"no step: it has {', '.join(map(repr, list(step)[:3]))} and not {', '.join(map(repr, _FIELDS))}; "
            "of a server's data promtool tsdb dump-openmetrics makes a recording"
        )
    for name, kind in _FIELDS.items():
        if type(step.get(name)) is not kind:
            raise ValueError(f"{name!r} must be of type {kind.__name__}")
    unknown = sorted(step["phases_ns"].keys() - _PHASES)
    if unknown:
        raise ValueError(f"no phase {unknown[0]!r}; phases are {', '.join(_PHASES)}")
    _check_values(step)
    return step


def _check_values(step: Mapping[str, Any]) -> None:
    for name, limit in _LIMITS.items():
        if not 0 <= step[name] < limit:
            raise ValueError(f"{name!r} must be 0 to {limit - 1}, got {str(step[name])[:20]}")
    for phase, length in step["phases_ns"].items():
        if type(length) not in (int, float) or not 0 <= length < _LIMITS["duration_ns"]:
            raise ValueError(f"phase {phase!r} must be a number of nanoseconds, got {str(length)[:20]!r}")
    if not isinstance(step.get("excluded"), str | None):
        raise ValueError("'excluded' must be a reason or null")  # noqa: TRY004 - one kind of error for the whole line


def recording_of(steps: Mapping[tuple[str, int], list[Mapping[str, Any]]]) -> Recording:
    """Return what the ranks' own metrics would have shown while the steps went on.

    The world size is taken for the number of ranks that are there, and a rank none of whose steps has a wait for
    communication for one that cannot measure it.
    """
    sizes: dict[str, int] = {}
    for run, _ in steps:
        sizes[run] = sizes.get(run, 0) + 1
    made = Recording()
    for (run, rank), unsorted in steps.items():
        ordered = sorted(unsorted, key=lambda step: step["started_unix_ns"])
        made.series += _rank(run, rank, sizes[run], ordered)
    return made


def _group(step: Mapping[str, Any]) -> dict[str, str]:
    group = step.get("peer_group")
    return {Attribute.PEER_GROUP: group} if isinstance(group, str) and group else {}


def _excluded(steps: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return by reason which steps were excluded."""
    reasons = [step.get("excluded") or "" for step in steps]
    return {reason: np.array([each == reason for each in reasons], float) for reason in sorted({*reasons} - {""})}


def _rank(run: str, rank: int, size: int, steps: list[Mapping[str, Any]]) -> list[Series]:
    identity = {Attribute.RUN: run, Attribute.RANK: str(rank)}
    identity |= _group(steps[-1])
    started = np.array([step["started_unix_ns"] for step in steps]) / 1e9
    lengths = np.array([step["duration_ns"] for step in steps]) / 1e9
    ends = np.maximum.accumulate(started + lengths)
    times = np.concatenate((started[:1], ends))
    counted = np.array([not step.get("excluded") for step in steps], dtype=float)
    phases = {
        phase: np.array([step["phases_ns"].get(label, 0) for step in steps]) / 1e9 for label, phase in _PHASES.items()
    }
    made: list[Series] = []

    def add(name: str, values: Any, **attributes: str) -> None:
        labels: Labels = tuple(
            sorted((prometheus_label(key), text) for key, text in {**identity, **attributes}.items())
        )
        made.append(Series(name, labels, times, np.broadcast_to(values, times.shape).astype(float), np.inf))

    def total(values: Any) -> Any:
        return np.concatenate(([0.0], np.cumsum(values)))

    add(prometheus_name(STEPS), total(np.ones(len(steps))))
    own = sum((phases[phase] for phase in OWN_PHASES), np.zeros(len(steps)))
    for metric, seconds in ((STEP_DURATION, lengths), (STEP_OWN_DURATION, own)):
        add(f"{prometheus_name(metric)}_sum", total(seconds * counted))
        add(f"{prometheus_name(metric)}_count", total(counted))
    for phase, seconds in phases.items():
        if seconds.any():
            add(f"{prometheus_name(PHASE_DURATION)}_sum", total(seconds * counted), **{Attribute.PHASE: phase.label})
            add(f"{prometheus_name(PHASE_DURATION)}_count", total(counted), **{Attribute.PHASE: phase.label})
    for reason, left_out in _excluded(steps).items():
        add(prometheus_name(STEPS_EXCLUDED), total(left_out), **{Attribute.REASON: reason})
        if reason == "first_batch":
            waited = prometheus_name(DATALOADER_FIRST_BATCH_DURATION)
            add(f"{waited}_sum", total(phases[Phase.DATA] * left_out))
            add(f"{waited}_count", total(left_out))
    waits = phases[Phase.COMMUNICATION]
    if waits.any():
        floor = [waits[max(0, end - RECENT_STEPS) : end].min() for end in range(1, len(steps) + 1)]
        add(prometheus_name(COMMUNICATION_FLOOR), np.array([floor[0], *floor]))
    for signal in SIGNALS:
        seen = signal != "communication" or waits.any()
        add(prometheus_name(SIGNAL_AVAILABLE), float(seen), **{Attribute.SIGNAL: signal})
    add(prometheus_name(RANKS_EXPECTED), float(size))
    add(prometheus_name(RANK_STATE), 1.0, **{Attribute.STATE: RankState.RUNNING.label})
    add(prometheus_name(LAST_STEP_TIMESTAMP), times)
    add(prometheus_name(RANK_START_TIMESTAMP), times[0])
    return made
