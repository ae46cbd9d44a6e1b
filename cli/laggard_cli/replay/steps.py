"""Recordings from the steps that the instrumentation writes as JSON lines: one rank's last steps in each file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from laggard.conventions import (
    COMMUNICATION_FLOOR,
    DATALOADER_FIRST_BATCH_DURATION,
    LAST_STEP_TIMESTAMP,
    OWN_PHASES,
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
    Attribute,
    Phase,
    RankState,
    prometheus_label,
    prometheus_name,
)
from laggard_cli.errors import CommandError
from laggard_cli.replay.recording import Labels, Recording, Series

#: What a line must have, with its type. What else it has is not read.
_FIELDS = {"run": str, "rank": int, "step": int, "started_unix_ns": int, "duration_ns": int, "phases_ns": dict}
_PHASES = {phase.label: phase for phase in Phase}


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
    except ValueError:
        raise ValueError("no JSON object") from None
    if not isinstance(content, dict):
        raise ValueError("no JSON object")  # noqa: TRY004  # one kind of error for the whole line
    step = cast("dict[str, Any]", content)
    for name, kind in _FIELDS.items():
        if type(step.get(name)) is not kind:
            raise ValueError(f"{name!r} must be of type {kind.__name__}")
    unknown = sorted(step["phases_ns"].keys() - _PHASES)
    if unknown:
        raise ValueError(f"no phase {unknown[0]!r}; phases are {', '.join(_PHASES)}")
    return step


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


def _rank(run: str, rank: int, size: int, steps: list[Mapping[str, Any]]) -> list[Series]:
    identity = {Attribute.RUN: run, Attribute.RANK: str(rank)}
    group = steps[-1].get("peer_group")
    if isinstance(group, str) and group:
        identity[Attribute.PEER_GROUP] = group
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
    first = np.array([step.get("excluded") == "first_batch" for step in steps])
    if first.any():
        add(f"{prometheus_name(DATALOADER_FIRST_BATCH_DURATION)}_sum", total(phases[Phase.DATA] * first))
        add(f"{prometheus_name(DATALOADER_FIRST_BATCH_DURATION)}_count", total(first))
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
