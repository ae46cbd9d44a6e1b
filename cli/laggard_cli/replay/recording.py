"""A recording: what the ranks and node exporters of training runs exposed over time. Read from OpenMetrics files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from laggard_cli.errors import CommandError

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]

#: A series is gone when it has no sample for this many of its usual intervals.
_REACH_INTERVALS = 2.5
#: Labels with which Prometheus names a target; replayed series get those of the replay.
_TARGET_LABELS = ("job", "instance")
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}


@dataclass(frozen=True)
class Series:
    """One series: times in seconds (increasing), values alike, and for how long after a sample it is still there."""

    name: str
    labels: Labels
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    reach: float

    @property
    def grows(self) -> bool:
        """Whether the series is a counter, by its name."""
        return self.name.endswith(("_total", "_sum", "_count", "_bucket"))


@dataclass
class Recording:
    """All series, and the span of time that they cover."""

    series: list[Series] = field(default_factory=list[Series])

    @property
    def begin(self) -> float:
        """Time of the first sample, in seconds."""
        return min(float(series.times[0]) for series in self.series)

    @property
    def end(self) -> float:
        """Time of the last sample, in seconds."""
        return max(float(series.times[-1]) for series in self.series)

    @property
    def runs(self) -> list[str]:
        """Names of the runs."""
        return sorted({value for series in self.series for label, value in series.labels if label == "training_run"})


def read_openmetrics(path: Path, lines: Iterable[str]) -> Recording:
    """Return the recording in the lines of an OpenMetrics file whose samples have timestamps.

    Raises:
        CommandError: a line is none of OpenMetrics', a sample has no time, or there is no series of ours.
    """
    found: dict[Key, list[tuple[float, float]]] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                key, time, value = _sample(text)
            except ValueError as error:
                raise CommandError(f"{path}, line {number}: {error}") from None
            found.setdefault(key, []).append((time, value))
    if not any(name.startswith("training_") for name, _ in found):
        raise CommandError(f"{path}: no training_* series; docs/replay.md says what a recording holds")
    return Recording([_series(key, samples) for key, samples in found.items()])


def _series(key: Key, samples: list[tuple[float, float]]) -> Series:
    unique = dict(samples)
    times = np.array(sorted(unique))
    interval = float(np.median(np.diff(times))) if len(times) > 1 else 15.0
    return Series(*key, times, np.array([unique[time] for time in times]), _REACH_INTERVALS * interval)


def _sample(text: str) -> tuple[Key, float, float]:
    """Return name and labels, time in seconds and value of a line such as ``name{label="value"} 1.5 1700000000``."""
    end = next((i for i, letter in enumerate(text) if letter in "{ "), len(text))
    name, labels = text[:end], ()
    if not name or not name.replace(":", "_").isidentifier():
        raise ValueError(f"{text[:40]!r} does not begin with the name of a series")
    if text[end:].startswith("{"):
        pairs, end = _labels(text, end + 1)
        labels = tuple(sorted(pair for pair in pairs if pair[0] not in _TARGET_LABELS))
    # An exemplar follows the sample after a number sign.
    numbers = text[end:].partition(" # ")[0].split()
    if len(numbers) != 2:  # noqa: PLR2004  # value and time
        raise ValueError(f"{name} needs a value and a time in seconds, not {' '.join(numbers) or 'nothing'!r}")
    try:
        value, time = map(float, numbers)
    except ValueError:
        raise ValueError(f"{name}: {' '.join(numbers)!r} is no value and time") from None
    if not np.isfinite(time):
        raise ValueError(f"{name}: {numbers[1]!r} is no time")
    return (name, labels), time, value


def _labels(text: str, start: int) -> tuple[list[tuple[str, str]], int]:
    """Return the labels from behind the opening brace on, and where the text goes on after the closing one."""
    pairs: list[tuple[str, str]] = []
    position = start
    while not text.startswith("}", position):
        name, equals, _ = text[position:].partition('="')
        if not equals or not name.isidentifier():
            raise ValueError(f"label expected at {text[position : position + 20]!r}")
        value, position = _quoted(text, position + len(name) + 2)
        pairs.append((name, value))
        if text.startswith(",", position):
            position += 1
        elif not text.startswith("}", position):
            raise ValueError(f"comma or brace expected at {text[position : position + 20]!r}")
    return pairs, position + 1


def _quoted(text: str, start: int) -> tuple[str, int]:
    letters: list[str] = []
    rest: Iterator[tuple[int, str]] = enumerate(text[start:], start)
    for position, letter in rest:
        if letter == '"':
            return "".join(letters), position + 1
        if letter == "\\":
            escaped = next(rest, (0, ""))[1]
            letters.append(_ESCAPES.get(escaped, "\\" + escaped))
        else:
            letters.append(letter)
    raise ValueError("a label's value does not end")
