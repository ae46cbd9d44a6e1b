"""What ranks push: OTLP's requests, as OpenTelemetry's SDK makes them of what the model says.

A request differs from the one before in numbers alone, all of which have eight bytes. So each is written once, and then
only its numbers are put in: thousands of ranks push from a part of one core.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from lab.evaluation.model.blocks import Array
from lab.evaluation.model.job import Job
from lab.scale.values import Values, name_and_labels
from laggard.shared.attributes import Attribute
from laggard.shared.metrics import METER_NAME, TRAINING_METRICS, Metric
from laggard.shared.names import prometheus_label, prometheus_name
from laggard.version import __version__
from laggard_exporter.web.address import PORT

_METRICS = {prometheus_name(metric): metric for metric in TRAINING_METRICS}
_BY_NAME = {metric.name: metric for metric in TRAINING_METRICS}
_ATTRIBUTES = {
    prometheus_label(name): name for key, name in vars(Attribute).items() if key.isupper() and isinstance(name, str)
}
#: Fields of the protocol's messages, by their numbers.
_DATA = {"gauge": 5, "counter": 7, "histogram": 9}
_CUMULATIVE = b"\x10\x02"
_MONOTONIC = b"\x18\x01"
_SUM, _COUNT = "_sum", "_count"
#: The protocol writes lengths in groups of seven bits, all but the last with the eighth bit.
_LOW, _MORE = 0x7F, 0x80


@dataclass(frozen=True, eq=False)
class Content:
    """What a request holds: its data points, and the samples that they become in Prometheus, by their names."""

    points: int
    samples: Counter[str]


@dataclass
class _Point:
    """A data point, framed, with gaps in the place of its numbers: their offsets, and which number each is."""

    framed: bytes
    gaps: tuple[tuple[int, int], ...]
    row: int
    samples: tuple[tuple[str, int], ...]


@dataclass
class Rank:
    """A rank's process: who it is, and its newest request."""

    run: str
    rank: str
    host: str
    target: int
    resource: bytes
    #: By the metric's name.
    points: dict[str, list[_Point]] = field(default_factory=dict[str, "list[_Point]"])
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    present: bytes = b""
    request: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    #: Index of each byte of the request's numbers, and which numbers of the target they are.
    places: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    numbers: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    content: Content = field(default_factory=lambda: Content(0, Counter()))


class Requests:
    """The requests of all ranks, at the present time."""

    def __init__(self, jobs: list[Job], values: Values) -> None:
        self._values = values
        # Ranks whose names are equally long have equal requests, but for the numbers: what they share is kept once.
        self._places: dict[bytes, NDArray[np.int32]] = {}
        self._contents: dict[tuple[tuple[tuple[str, int], ...], ...], Content] = {}
        self._sources: dict[int, tuple[Array, NDArray[np.uint64]]] = {}
        self.ranks: list[Rank] = []
        steps = {job.run: job.own for job in jobs}
        for number in range(len(values.targets)):
            self._take(number, steps)

    def make(self, rank: Rank) -> tuple[bytes, int] | None:
        """Return a request, and its time in milliseconds; None while there is no process."""
        values = self._values.now(rank.target)
        if values is None:
            return None
        there = ~np.isnan(values[rank.rows])
        if not there.any():
            return None
        if rank.present != (present := there.tobytes()):
            rank.present = present
            self._write(rank, there)
        numbers = self._numbers(rank.target, values)
        now = time.time_ns() // 10**6
        numbers[-1] = now * 10**6
        rank.request[rank.places] = numbers[rank.numbers].view(np.uint8)
        return rank.request.tobytes(), now

    def _numbers(self, target: int, values: Array) -> NDArray[np.uint64]:
        """Return the bits of values as they are, of values as counts, and a place for the time."""
        known = self._sources.get(target)
        if known is None or known[0] is not values:
            counts = np.nan_to_num(np.maximum(values, 0.0)).astype(np.uint64)
            known = self._sources[target] = values, np.concatenate([values.view(np.uint64), counts, counts[-1:]])
        return known[1]

    def _take(self, number: int, steps: dict[str, float]) -> None:
        """Make the ranks of a target, with their points."""
        target = self._values.targets[number]
        start = struct.pack("<Q", round((self._values.began + target.begin) * 1e9))
        ranks: dict[str, Rank] = {}
        rows = {each: row for row, each in enumerate(target.series)}
        make = _Points(start, zero=len(rows))
        for row, each in enumerate(target.series):
            name, pairs = name_and_labels(each)
            host, port = pairs.pop("instance").split(":")
            if int(port) == PORT:
                return
            run, rank = pairs["training_run"], pairs["training_rank"]
            if rank not in ranks:
                ranks[rank] = Rank(run, rank, host, number, _resource())
            process = ranks[rank]
            metric = _METRICS.get(name) or _METRICS[name.removesuffix(_SUM).removesuffix(_COUNT)]
            points = process.points.setdefault(metric.name, [])
            if metric.kind != "histogram":
                points.append(make.number(metric, name, pairs, row))
            elif name.endswith(_COUNT):
                total = rows["\t".join([name.removesuffix(_COUNT) + _SUM, *each.split("\t")[1:]])]
                points.append(make.histogram(metric, pairs, row, total, steps[run]))
        for process in ranks.values():
            process.rows = np.array([point.row for points in process.points.values() for point in points])
        self.ranks += ranks.values()

    def _write(self, rank: Rank, there: NDArray[np.bool_]) -> None:
        """Write a rank's request, with the points that are there."""
        left = iter(there.tolist())
        metrics: list[tuple[bytes, list[_Point], bytes]] = []
        for name, points in rank.points.items():
            present = [point for point in points if next(left)]
            if present:
                metrics.append(_frame(_BY_NAME[name], present))
        scope = _field(1, _field(1, METER_NAME.encode()) + _field(2, __version__.encode()))
        inside = len(scope) + sum(
            len(a) + len(b) + sum(len(each.framed) for each in points) for a, points, b in metrics
        )
        resource = rank.resource + _head(2, inside)
        pieces = [_head(1, len(resource) + inside), resource, scope]
        at = sum(map(len, pieces))
        gaps: list[tuple[int, int]] = []
        for before, points, behind in metrics:
            pieces.append(before)
            at += len(before)
            for point in points:
                gaps += [(at + offset, number) for offset, number in point.gaps]
                pieces.append(point.framed)
                at += len(point.framed)
            pieces.append(behind)
            at += len(behind)
        rank.request = np.frombuffer(b"".join(pieces), dtype=np.uint8).copy()
        offsets, rank.numbers = np.array(gaps, dtype=np.int32).T.copy()
        places = (offsets[:, None] + np.arange(8, dtype=np.int32)[None, :]).ravel()
        rank.places = self._places.setdefault(offsets.tobytes(), places)
        kinds = tuple(point.samples for _, points, _ in metrics for point in points)
        if kinds not in self._contents:
            samples: Counter[str] = Counter()
            for kind in kinds:
                samples.update(dict(kind))
            self._contents[kinds] = Content(len(kinds), samples)
        rank.content = self._contents[kinds]


def _resource() -> bytes:
    """Return the resource of a new process: the SDK's own attributes, and a name that no other has."""
    said = {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "service.name": "training",
        "service.instance.id": str(uuid.uuid4()),
    }
    return _field(1, b"".join(_field(1, _attribute(name, value)) for name, value in said.items()))


@dataclass(frozen=True)
class _Points:
    """Makes the data points of a target's series.

    Args:
        start: when its processes started, as the protocol writes it.
        zero: the place of the zero behind the target's values. Counts stand behind that, and the time behind those.
    """

    start: bytes
    zero: int

    def number(self, metric: Metric, name: str, pairs: dict[str, str], row: int) -> _Point:
        """Return the point of a counter or gauge, whose value stands in a row."""
        begun = _fixed(2, self.start) if metric.kind == "counter" else b""
        return _point(_labels(7, pairs) + begun, [(3, self._time), (4, row)], b"", row, ((name, 1),))

    def histogram(self, metric: Metric, pairs: dict[str, str], count: int, total: int, step: float) -> _Point:
        """Return a histogram's point, with all observations in one bucket, the first that surely holds a step."""
        name = prometheus_name(metric)
        held = sum(bound <= 2 * step for bound in metric.bounds)
        behind = b"\0" * 8 * (len(metric.bounds) - held)
        bounds = _field(7, struct.pack(f"<{len(metric.bounds)}d", *metric.bounds)) if metric.bounds else b""
        counted = self.zero + 1 + count
        point = _point(
            _labels(9, pairs) + _fixed(2, self.start),
            [(3, self._time), (5, total), (4, counted)],
            _head(6, 8 * (len(metric.bounds) + 1)) + b"\0" * 8 * (held + 1) + behind + bounds,
            count,
            ((f"{name}_bucket", len(metric.bounds) + 1), (f"{name}{_SUM}", 1), (f"{name}{_COUNT}", 1)),
        )
        bucket = len(point.framed) - len(bounds) - len(behind) - 8
        return replace(point, gaps=(*point.gaps, (bucket, counted)))

    @property
    def _time(self) -> int:
        return 2 * self.zero + 2


def _point(
    before: bytes, gaps: list[tuple[int, int]], behind: bytes, row: int, samples: tuple[tuple[str, int], ...]
) -> _Point:
    """Return a point with gaps for numbers: the fields that they are, and where their values stand."""
    inside = len(before) + 9 * len(gaps) + len(behind)
    head = _head(1, inside)
    framed = b"".join([head, before, *(_fixed(number, b"\0" * 8) for number, _ in gaps), behind])
    first = len(head) + len(before) + 1
    return _Point(framed, tuple((first + 9 * place, source) for place, (_, source) in enumerate(gaps)), row, samples)


def _frame(metric: Metric, points: list[_Point]) -> tuple[bytes, list[_Point], bytes]:
    """Return what stands before a metric's points, those, and what stands behind."""
    behind = {"gauge": b"", "counter": _CUMULATIVE + _MONOTONIC, "histogram": _CUMULATIVE}[metric.kind]
    inside = sum(len(point.framed) for point in points) + len(behind)
    named = _named(metric) + _head(_DATA[metric.kind], inside)
    return _head(2, len(named) + inside) + named, points, behind


@cache
def _named(metric: Metric) -> bytes:
    return _field(1, metric.name.encode()) + _field(2, metric.description.encode()) + _field(3, metric.unit.encode())


def _labels(number: int, pairs: dict[str, str]) -> bytes:
    return b"".join(_label(number, label, value) for label, value in pairs.items())


@lru_cache(maxsize=100_000)
def _label(number: int, label: str, value: str) -> bytes:
    return _field(number, _attribute(_ATTRIBUTES[label], value))


def _attribute(name: str, value: str) -> bytes:
    return _field(1, name.encode()) + _field(2, _field(1, value.encode()))


def _field(number: int, payload: bytes) -> bytes:
    """Return a field of bytes, text or a message."""
    return _head(number, len(payload)) + payload


def _fixed(number: int, payload: bytes) -> bytes:
    """Return a field of eight bytes."""
    return bytes([number << 3 | 1]) + payload


def _head(number: int, length: int) -> bytes:
    head = bytearray([number << 3 | 2])
    while length > _LOW:
        head.append(length & _LOW | _MORE)
        length >>= 7
    head.append(length)
    return bytes(head)
