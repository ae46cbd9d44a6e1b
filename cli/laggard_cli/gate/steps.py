"""A run from the steps that the instrumentation writes as JSON lines."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from laggard.shared.phases import Phase
from laggard_cli.errors import CommandError
from laggard_cli.gate.measured import PAUSES, Array, Measured
from laggard_cli.replay.steps import parse_step

_PHASES = tuple(phase.label for phase in Phase)
_SECOND = 1e-9
#: What is longer than a year is no step.
_MOST_NS = 365 * 86400 * 10**9


@dataclass
class _Rank:
    #: Duration and phases of each step by its number, in nanoseconds; a step in two files counts once.
    steps: dict[int, tuple[int, ...]] = field(default_factory=dict[int, "tuple[int, ...]"])
    excluded: set[int] = field(default_factory=set[int])
    memory: dict[str, float] = field(default_factory=dict[str, float])


def step_files(source: str) -> list[Path]:
    """Return the files of a recording: one file, the ``.jsonl`` files of a folder, or what a pattern matches.

    Raises:
        CommandError: there is none.
    """
    path = Path(source)
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
    elif path.exists():
        found = [path]
    else:
        found = sorted(Path(name) for name in glob.glob(source, recursive=True))  # noqa: PTH207 - absolute ones too
    if not found:
        what = "no .jsonl file in the folder" if path.is_dir() else "no such file or folder, and no file matches"
        raise CommandError(f"{source}: {what}; a run of Prometheus is run:NAME with --prometheus")
    return found


def read_steps(source: str, files: Iterable[Path], warmup: int = 0) -> Measured:
    """Return a run.

    Args:
        source: what the user gave.
        files: one or more for each rank.
        warmup: so many steps of each rank are left out, besides those that are marked as excluded.

    Raises:
        CommandError: a file is no recording, ranks are missing, or there is more than one run.
    """
    ranks: dict[int, _Rank] = {}
    runs: set[str] = set()
    sizes: set[int] = set()
    for path in files:
        number = 0
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):  # noqa: B007 - the error names the line
                    if line.strip():
                        _add_step(parse_step(line), ranks, runs, sizes)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise CommandError(f"{path}: no text") from error
        except ValueError as error:
            raise CommandError(f"{path}, line {number}: {error}") from error
    if not ranks:
        raise CommandError(f"{source}: no step in it")
    if len(runs) > 1:
        raise CommandError(f"{source}: has runs {', '.join(sorted(runs))}; a recording is of one run")
    _check_ranks(source, set(ranks), sizes)
    return _measured(source, runs.pop(), ranks, warmup)


def _add_step(step: dict[str, Any], ranks: dict[int, _Rank], runs: set[str], sizes: set[int]) -> None:
    phases: dict[str, Any] = step["phases_ns"]
    values = (step["duration_ns"], *(phases.get(phase, 0) for phase in _PHASES))
    if any(type(value) is not int or not 0 <= value < _MOST_NS for value in values) or values[0] == 0:
        raise ValueError("durations must be numbers of nanoseconds, and that of a step not 0")
    # A device's clock and the host's differ by a little.
    if sum(values[1:]) > 1.01 * values[0]:
        raise ValueError("the phases take longer than the step")
    runs.add(step["run"])
    rank = ranks.setdefault(step["rank"], _Rank())
    rank.steps[step["step"]] = values
    if step.get("excluded"):
        rank.excluded.add(step["step"])
    if type(step.get("world_size")) is int:
        sizes.add(step["world_size"])
    memory: Any = step.get("memory_peak_bytes")
    if isinstance(memory, dict):
        for kind, value in cast("dict[str, Any]", memory).items():
            if type(value) is not int or value < 0:
                raise ValueError(f"memory_peak_bytes of {kind} must be bytes, 0 or more, got {value!r}")
            rank.memory[kind] = max(rank.memory.get(kind, 0), value)


def _check_ranks(source: str, found: set[int], sizes: set[int]) -> None:
    """Refuse a recording in which a rank is missing: it may be the slow one."""
    if len(sizes) > 1:
        raise CommandError(f"{source}: has steps of {' and '.join(map(str, sorted(sizes)))} ranks; give one of them")
    expected = sizes.pop() if sizes else max(found) + 1
    missing = sorted(set(range(expected)) - found)
    if missing or len(found) != expected:
        which = f"rank {missing[0]} is missing" if missing else f"rank {max(found)} is beyond them"
        raise CommandError(f"{source}: has {len(found)} of {expected} ranks, {which}")


def _measured(source: str, run: str, ranks: dict[int, _Rank], warmup: int) -> Measured:
    first, *others = ranks.values()
    common = set(first.steps).intersection(*(rank.steps for rank in others))
    excluded = first.excluded.union(*(rank.excluded for rank in others))
    numbers = [number for number in sorted(common)[warmup:] if number not in excluded]
    if not numbers:
        raise CommandError(
            f"{source}: no step is left that all {len(ranks)} ranks have, without warm-up; record more steps"
        )
    total: Array = np.zeros((len(numbers), 1 + len(_PHASES)))
    for rank in ranks.values():
        total += np.array([rank.steps[number] for number in numbers], dtype=np.float64)
    total *= _SECOND / len(ranks)
    wall = total[:, 0]
    phases = {phase: total[:, column] for column, phase in enumerate(_PHASES, 1) if total[:, column].any()}
    pauses = sum((phases[name] for name in PAUSES if name in phases), np.zeros(len(numbers)))
    if not (wall - pauses).any():
        raise CommandError(f"{source}: all steps are nothing but checkpoint and evaluation")
    kinds = {kind for rank in ranks.values() for kind in rank.memory}
    memory = {kind: max(rank.memory.get(kind, 0.0) for rank in ranks.values()) for kind in sorted(kinds)}
    return Measured(source, run, len(ranks), "step", np.maximum(wall - pauses, 0), phases, {"steps": wall}, memory)
