"""A run in a file: what ``--save`` writes, and what may be given in place of a recording."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np

from laggard.shared.phases import Phase
from laggard.version import __version__
from laggard_cli.errors import CommandError
from laggard_cli.gate.measured import Array, Measured

#: Version of the format, and the key that stands first in a file and says what it is.
SCHEMA = 1
_KEY = "laggard_baseline"
_FIELDS = (_KEY, "laggard_version", "run", "ranks", "unit", "step", "phases", "throughput", "memory")
#: Only where there are several.
_RECORDINGS = "recordings"
_PHASES = {phase.label for phase in Phase}
_COUNTED = {"steps", "samples", "tokens"}


def is_baseline(path: Path) -> bool:
    """Return whether a file begins as a saved baseline does, whole or not.

    Raises:
        CommandError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return f'"{_KEY}"'.encode() in file.read(64)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error


def save(path: Path, measured: Measured) -> None:
    """Write a run to a file, six digits of each value.

    Raises:
        CommandError: the file cannot be written.
    """
    content = {
        _KEY: SCHEMA,
        "laggard_version": __version__,
        "run": measured.run,
        "ranks": measured.ranks,
        "unit": measured.unit,
        "step": _rounded(measured.step),
        "phases": {name: _rounded(series) for name, series in measured.phases.items()},
        "throughput": {name: _rounded(series) for name, series in measured.throughput.items()},
        "memory": measured.memory,
    }
    if measured.recordings:
        content[_RECORDINGS] = list(measured.recordings)
    try:
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--save {path}: {error.strerror}") from error


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def load(path: Path) -> Measured:
    """Return the run in a saved baseline.

    Raises:
        CommandError: it is truncated, of another schema, or otherwise not as it must be.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: {error.strerror if isinstance(error, OSError) else 'no text'}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: the baseline is not whole ({error}); save it again with --save") from error
    try:
        return _measured(str(path), content)
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from None


def _measured(source: str, content: Any) -> Measured:
    fields = _mapping("the baseline", content)
    if type(fields.get(_KEY)) is not int or fields[_KEY] != SCHEMA:
        raise ValueError(f"a baseline of schema {fields.get(_KEY)!r}, not {SCHEMA}; save it again with this version")
    if set(fields) - {_RECORDINGS} != set(_FIELDS):
        odd = min((set(fields) - {_RECORDINGS}) ^ set(_FIELDS))
        raise ValueError(f"field {odd!r} {'is missing' if odd in _FIELDS else 'is unknown'} in the baseline")
    run, ranks, unit = fields["run"], fields["ranks"], fields["unit"]
    if not isinstance(run, str) or type(ranks) is not int or ranks < 1 or unit not in ("step", "interval"):
        raise ValueError("run, ranks or unit of the baseline is not what it must be: a text, a count, step or interval")
    step = _series("step", fields["step"])
    if not len(step):
        raise ValueError("the baseline has no step")
    groups: list[dict[str, Array]] = []
    for group, known in (("phases", _PHASES), ("throughput", _COUNTED)):
        found = _mapping(group, fields[group])
        if set(found) - known:
            raise ValueError(f"{group} of the baseline: {min(set(found) - known)!r} is unknown")
        groups.append({name: _series(name, values) for name, values in found.items()})
    phases, throughput = groups
    if any(len(series) != len(step) for series in (*phases.values(), *throughput.values())):
        raise ValueError("the series of the baseline are not of the same length")
    if "steps" not in throughput or any(not series.any() for series in (step, *throughput.values())):
        raise ValueError("the baseline has no throughput in steps, or its steps took no time")
    memory = {kind: _number(kind, value) for kind, value in _mapping("memory", fields["memory"]).items()}
    recordings: Any = fields.get(_RECORDINGS, [])
    lengths = cast("list[Any]", recordings) if isinstance(recordings, list) else [0]
    if any(type(length) is not int or length < 1 for length in lengths) or (lengths and sum(lengths) != len(step)):
        raise ValueError("recordings of the baseline must be counts of steps that add up to all of them")
    return Measured(source, run, ranks, unit, step, phases, throughput, memory, tuple(lengths))


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object")  # noqa: TRY004 - one kind of error for the whole file
    return cast("dict[str, Any]", value)


def _series(name: str, values: Any) -> Array:
    if not isinstance(values, list):
        raise ValueError(f"{name} of the baseline must be a list of numbers")  # noqa: TRY004 - as above
    return np.array([_number(name, value) for value in cast("list[Any]", values)], dtype=np.float64)


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} of the baseline must be seconds or bytes, 0 or more, got {value!r}")
    return float(value)
