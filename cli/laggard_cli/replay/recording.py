"""A recording: what the ranks and node exporters of training runs exposed over time. Read from OpenMetrics files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from laggard_cli.clusters import CLUSTER, RUN, Run
from laggard_cli.errors import CommandError

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]

#: A series is gone when it has no sample for this many of its usual intervals.
_REACH_INTERVALS = 2.5
#: A time above this, which is in the year 5138, is in milliseconds.
_LATEST_SECONDS = 1e11
#: Labels with which Prometheus names a target; replayed series get those of the replay.
_TARGET_LABELS = ("job", "instance")
_PLAIN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
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
    def runs(self) -> list[Run]:
        """The runs, each in its cluster."""
        labels = (dict(series.labels) for series in self.series)
        return sorted({Run(each.get(CLUSTER, ""), each[RUN]) for each in labels if RUN in each})


def read_openmetrics(path: Path, lines: Iterable[str]) -> Recording:
    """Return the recording in the lines of an OpenMetrics file whose samples have timestamps.

    Raises:
        CommandError: a line is none of OpenMetrics', a sample has no time, or there is no series of ours.

    A NaN ends a series until its next one: so Prometheus marks what is gone.
    """
    found: dict[Key, list[tuple[float, float]]] = {}
    others: set[str] = set()
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                key, time, value = _sample(text)
            except ValueError as error:
                raise CommandError(f"{path}, line {number}: {error}") from None
            # A name in quotes, with dots for example, is somebody else's.
            if _is_plain(key[0]):
                found.setdefault(key, []).append((time, value))
            else:
                others.add(key[0])
    if not any(name.startswith("training_") for name, _ in found):
        dotted = (
            " (training.* is there: try a server that translates names)"
            if any(name.startswith("training.") for name in others)
            else ""
        )
        raise CommandError(f"{path}: no training_* series{dotted}; docs/replay.md says what a recording holds")
    # What never is a number is no series.
    there = ((key, samples) for key, samples in found.items() if any(np.isfinite(value) for _, value in samples))
    return Recording([_series(key, samples) for key, samples in there])


def _series(key: Key, samples: list[tuple[float, float]]) -> Series:
    unique = dict(samples)
    times = np.array(sorted(unique))
    interval = float(np.median(np.diff(times))) if len(times) > 1 else 15.0
    return Series(*key, times, np.array([unique[time] for time in times]), _REACH_INTERVALS * interval)


def _sample(text: str) -> tuple[Key, float, float]:
    """Return name and labels, time in seconds and value of a line such as ``name{label="value"} 1.5 1700000000``."""
    end = next((i for i, letter in enumerate(text) if letter in "{ "), len(text))
    name, labels = text[:end], ()
    if not name.startswith("{") and name and not _is_plain(re.sub("[./-]", "_", name)):
        raise ValueError(f"{text[:40]!r} does not begin with the name of a series")
    if text[end:].startswith("{"):
        pairs, end = _labels(text, end + 1)
        # In the form with quotes the name is the one without a label; a dump may have it as a label.
        name = name or next((value for label, value in pairs if label in ("", "__name__")), "")
        hidden = ("", "__name__", *_TARGET_LABELS)
        labels = tuple(sorted((_translated(label), value) for label, value in pairs if label not in hidden))
    if not name:
        raise ValueError(f"{text[:40]!r} does not begin with the name of a series")
    # An exemplar follows the sample after a number sign.
    numbers = text[end:].partition(" # ")[0].split()
    if len(numbers) != 2:  # noqa: PLR2004 - value and time
        raise ValueError(f"{name} needs a value and a time in seconds, not {' '.join(numbers) or 'nothing'!r}")
    try:
        value, time = map(float, numbers)
    except ValueError:
        raise ValueError(f"{name} must have a value and a time, got {' '.join(numbers)!r}") from None
    if not np.isfinite(time):
        raise ValueError(f"the time of {name} must be a number, got {numbers[1]!r}")
    if time > _LATEST_SECONDS:
        raise ValueError(
            f"the time of {name} must be in seconds, got {numbers[1]!r}; Prometheus' text format, such as that of "
            "/federate, has milliseconds: try promtool tsdb dump-openmetrics"
        )
    return (name, labels), time, value


def _labels(text: str, start: int) -> tuple[list[tuple[str, str]], int]:
    """Return the labels from behind the opening brace on, and where the text goes on after the closing one."""
    pairs: list[tuple[str, str]] = []
    position = start
    while not text.startswith("}", position):
        if text.startswith('"', position):
            quoted, position = _quoted(text, position + 1)
            if text.startswith('="', position):
                value, position = _quoted(text, position + 2)
                pairs.append((quoted, value))
            else:
                pairs.append(("", quoted))
        else:
            name, equals, _ = text[position:].partition('="')
            if not equals or not name.isidentifier():
                raise ValueError(f"label expected at {text[position : position + 20]!r}")
            value, position = _quoted(text, position + len(name) + 2)
            pairs.append((name, value))
        if text.startswith(",", position):
            position = len(text) - len(text[position + 1 :].lstrip(" "))
        elif not text.startswith("}", position):
            raise ValueError(f"comma or brace expected at {text[position : position + 20]!r}")
    return pairs, position + 1


def _is_plain(name: str) -> bool:
    """Return whether a name is one that Prometheus writes without quotes."""
    return _PLAIN.fullmatch(name) is not None


def _translated(label: str) -> str:
    """Return the name of a label as Prometheus writes it where it translates names."""
    return label if label.isidentifier() and label.isascii() else re.sub(r"[^a-zA-Z0-9_]", "_", label)


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
