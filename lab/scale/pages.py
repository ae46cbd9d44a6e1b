"""What the exporters of simulated nodes answer: their own page, and the one of the ranks on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from lab.evaluation.model.job import Job
from lab.scale.values import Values, name_and_labels
from laggard.shared.metrics import STEP_BOUNDS
from laggard_exporter.web.address import PORT

#: Where the exporter serves both.
EXPORTER, RANKS = "/metrics", "/ranks/metrics"
#: Which histograms have buckets, beside what the model says, and which bucket holds a step.
_BUCKETS = ("training_step_duration_seconds_count", "training_step_own_duration_seconds_count")


@dataclass
class _Part:
    """What one target of the model gives to one page: lines without their values, and where those stand."""

    target: int
    lines: list[str] = field(default_factory=list[str])
    rows: list[int] = field(default_factory=list[int])


class Pages:
    """The pages of all nodes, at the present time.

    Args:
        jobs: the runs.
        values: what they are worth.
        ranks: whether the ranks' own metrics are on pages too.
    """

    def __init__(self, jobs: list[Job], values: Values, *, ranks: bool = True) -> None:
        self._values = values
        self._parts: dict[str, list[_Part]] = {}
        steps = {job.run: job.own for job in jobs}
        for number in range(len(values.targets)):
            self._take(number, steps, ranks=ranks)

    @property
    def paths(self) -> list[str]:
        """Where they are, each with the node's name before it."""
        return sorted(self._parts)

    def page(self, path: str) -> bytes:
        """Return a page as Prometheus reads it. Raises :class:`KeyError` where there is none."""
        lines: list[str] = []
        for part in self._parts[path]:
            known = self._values.now(part.target)
            if known is not None:
                pairs = zip(part.lines, known[part.rows].tolist(), strict=True)
                lines += [f"{line} {value}" for line, value in pairs if not math.isnan(value)]
        return ("\n".join(lines) + "\n").encode()

    def _take(self, number: int, steps: dict[str, float], *, ranks: bool) -> None:
        """Share a target's series out among the pages of its nodes."""
        parts: dict[str, _Part] = {}
        series = self._values.targets[number].series
        for row, each in enumerate(series):
            name, pairs = name_and_labels(each)
            host, port = pairs.pop("instance").split(":")
            exported = int(port) == PORT
            if not exported and not ranks:
                return
            part = parts.setdefault(f"/{host}{EXPORTER if exported else RANKS}", _Part(number))
            part.lines.append(_line(name, pairs))
            part.rows.append(row)
            if name in _BUCKETS:
                # All steps lie between two bounds: enough for a cost, and nothing that rules read.
                for bound in (*STEP_BOUNDS, np.inf):
                    le = "+Inf" if bound == np.inf else f"{bound}"
                    part.lines.append(_line(name.replace("_count", "_bucket"), {**pairs, "le": le}))
                    part.rows.append(row if bound > 2 * steps[pairs["training_run"]] else len(series))
        for path, part in parts.items():
            self._parts.setdefault(path, []).append(part)


def _line(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inside}}}"
