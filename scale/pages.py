"""What the exporters of simulated nodes answer: their own page, and the one of the ranks on them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from evaluation.model.blocks import Array
from evaluation.model.exposition import incarnations
from evaluation.model.job import Job
from evaluation.model.target import EPOCH, Target
from laggard.conventions import STEP_BOUNDS

#: Where the exporter serves both.
EXPORTER, RANKS = "/metrics", "/ranks/metrics"
EXPORTER_PORT = 9495
#: Values are those at the beginning of a so long time, in seconds: all pages of it come from one step of the model.
_TICK = 3.0
#: Which histograms have buckets, beside what the model says, and which bucket holds a step.
_BUCKETS = ("training_step_duration_seconds_count", "training_step_own_duration_seconds_count")


class _Everything:
    """Holds every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass
class _Part:
    """What one target of the model gives to one page: lines without their values, and where those stand."""

    target: int
    lines: list[str] = field(default_factory=list[str])
    rows: list[int] = field(default_factory=list[int])


class Pages:
    """The pages of all nodes, at the present time."""

    def __init__(self, jobs: list[Job]) -> None:
        self._targets = [target for job in jobs for each in incarnations(job) for target in each.targets(_Everything())]
        self._parts: dict[str, list[_Part]] = {}
        self._shifts: list[Array] = []
        #: When their clock began, in seconds since 1970.
        self.began = time.time()
        self._known: dict[int, tuple[float, Array]] = {}
        steps = {job.run: job.own for job in jobs}
        for number, target in enumerate(self._targets):
            self._take(number, target, steps)

    @property
    def paths(self) -> list[str]:
        """Where they are, each with the node's name before it."""
        return sorted(self._parts)

    def page(self, path: str) -> bytes:
        """Return a page as Prometheus reads it. Raises :class:`KeyError` where there is none."""
        now = time.time() - self.began
        lines: list[str] = []
        for part in self._parts[path]:
            target = self._targets[part.target]
            if target.begin <= now <= target.end:
                values = self._values(part.target, now - now % _TICK)[part.rows].tolist()
                lines += [f"{line} {value}" for line, value in zip(part.lines, values, strict=True) if value == value]  # noqa: PLR0124
        return ("\n".join(lines) + "\n").encode()

    def _values(self, number: int, at: float) -> Array:
        """Return a target's values and, behind them, a zero."""
        known = self._known.get(number)
        if known is None or known[0] != at:
            values = self._targets[number].read(at) + self._shifts[number]
            known = self._known[number] = at, np.append(values, 0.0)
        return known[1]

    def _take(self, number: int, target: Target, steps: dict[str, float]) -> None:
        """Share a target's series out among the pages of its nodes."""
        parts: dict[str, _Part] = {}
        shift = np.zeros(len(target.series))
        for row, series in enumerate(target.series):
            name, *labels = series.split("\t")
            pairs = dict(zip(labels[::2], labels[1::2], strict=True))
            host, port = pairs.pop("instance").split(":")
            path = f"/{host}{EXPORTER if int(port) == EXPORTER_PORT else RANKS}"
            part = parts.setdefault(path, _Part(number))
            part.lines.append(_line(name, pairs))
            part.rows.append(row)
            if name.endswith("_timestamp_seconds"):
                shift[row] = self.began - EPOCH
            if name in _BUCKETS:
                # All steps lie between two bounds: enough for a cost, and nothing that rules read.
                for bound in (*STEP_BOUNDS, np.inf):
                    le = "+Inf" if bound == np.inf else f"{bound}"
                    part.lines.append(_line(name.replace("_count", "_bucket"), {**pairs, "le": le}))
                    part.rows.append(row if bound > 2 * steps[pairs["training_run"]] else len(target.series))
        self._shifts.append(shift)
        for path, part in parts.items():
            self._parts.setdefault(path, []).append(part)


def _line(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inside}}}"
