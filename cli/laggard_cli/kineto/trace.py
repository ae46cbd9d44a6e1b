"""What matters of one rank's trace, in arrays. Times are microseconds of the trace's own clock."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from laggard.shared.peers import PeerGroup
from laggard_cli.errors import CommandError
from laggard_cli.kineto.kinds import DEVICE, Kind, kind_of
from laggard_cli.kineto.reader import EVENTS, scan

Times = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: A file that laggard had written: the run, percent-encoded, and the rank before the time.
OWN_NAME = re.compile(r"(.+)-(\d+)\.\d{8}T\d{6}\.profile\.json")
#: How a file is called by habit that says nothing of its rank.
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
#: So torch calls the process groups of a mesh, before the name of the dimension.
_MESH = "mesh_"
#: Microseconds since 1970 that are in the year 2286; no time is beyond it.
_MAX_TIME = 1e16
_MAX_CORRELATION = 2**63


@dataclass(frozen=True)
class Events:
    """Events as arrays of one length, ordered by their start."""

    kind: NDArray[np.int8]
    begin: Times
    end: Times
    thread: NDArray[np.int32]
    #: Index into ``Trace.names``.
    name: NDArray[np.int32]
    #: Of a kernel and of the call that launched it the same; -1 elsewhere.
    correlation: NDArray[np.int64]
    #: Whether autograd recorded it, which it does in forward.
    recorded: Mask

    def of(self, *kinds: Kind) -> Events:
        """Return the events of some kinds."""
        return self[np.isin(self.kind, kinds)]

    def __getitem__(self, chosen: Any) -> Events:
        return Events(*(column[chosen] for column in vars(self).values()))

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Trace:
    """One rank's trace. ``rank`` and ``size`` are ``None`` where the file does not say them."""

    path: Path
    rank: int | None
    size: int | None
    #: Which ranks do the same work, by the names of meshes; empty where nothing says that they differ.
    group: str
    host: str
    #: Seconds since 1970 at the first and at the last event.
    began: float
    ended: float
    names: list[str]
    #: Of the training thread's host events, of the autograd engine's, of collectives and of the device.
    events: Events
    #: The thread that trains, as events number it.
    training: int

    @property
    def on_device(self) -> bool:
        """Whether anything ran on a device."""
        return bool(np.isin(self.events.kind, DEVICE).any())


def read(path: Path) -> Trace:
    """Return one rank's trace.

    Raises:
        CommandError: the file cannot be read, or is no whole trace of torch's profiler.
    """
    facts: dict[str, Any] = {}
    columns = _Columns(path)
    for key, value in scan(path):
        if key == EVENTS:
            columns.add(value)
        else:
            facts[key] = value
    if isinstance(facts.get("otherData"), dict) and "run" in facts["otherData"]:
        raise CommandError(f"{path}: a trace for a viewer; a dump to a path that ends in .jsonl can be replayed")
    if not columns.count:
        raise CommandError(f"{path}: no trace of torch's profiler: it has no {EVENTS}")
    events = columns.events()
    if not (events.kind != Kind.FUNCTION).any():
        raise CommandError(
            f"{path}: no operators and no kernels of torch among {columns.count} events; was torch's profiler on?"
        )
    distributed = facts.get("distributedInfo")
    info = cast("dict[str, Any]", distributed) if isinstance(distributed, dict) else {}
    base = facts.get("baseTimeNanoseconds")
    offset = base / 1e9 if isinstance(base, int) and 0 <= base < _MAX_TIME * 1000 else 0.0
    rank = _whole(info.get("rank"), path, "rank", named=_rank_in_name(path))
    return Trace(
        path=path,
        rank=rank,
        size=_whole(info.get("world_size"), path, "world_size", named=None),
        group=_group(info.get("pg_config"), rank),
        host=str(facts.get("host_name", "")),
        began=offset + float(events.begin[0]) / 1e6,
        ended=offset + float(events.end.max()) / 1e6,
        names=list(columns.names),
        events=events,
        training=_training_thread(events),
    )


def _whole(value: Any, path: Path, name: str, *, named: int | None) -> int | None:
    if value is None or value == "":
        return named
    try:
        return int(value)  # torch writes numbers, Kineto's daemon texts
    except (TypeError, ValueError, OverflowError):
        raise CommandError(f"{path}: distributedInfo.{name} must be a number, got {value!r}") from None


def _group(configurations: Any, rank: int | None) -> str:
    """Return the peer group of a rank by its place in the process groups of meshes, as the instrumentation names it."""
    peers = PeerGroup()
    for each in cast("list[Any]", configurations) if isinstance(configurations, list) else []:
        group = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        name, ranks = group.get("pg_desc"), group.get("ranks")
        if isinstance(name, str) and name.startswith(_MESH) and isinstance(ranks, list) and rank in ranks:
            members = cast("list[Any]", ranks)
            peers.learn({name.removeprefix(_MESH): (members.index(rank), len(members))})
    return peers.name("")


def _rank_in_name(path: Path) -> int | None:
    own, found = OWN_NAME.fullmatch(path.name), _RANK_IN_NAME.search(path.name)
    text = own[2] if own else found[1] if found else None
    return None if text is None else int(text)


def _training_thread(events: Events) -> int:
    """Return the thread with the marks of steps, or of updates, or most operators."""
    for kind in (Kind.STEP, Kind.OPTIMIZER, Kind.OPERATOR):
        threads = events.of(kind).thread
        if len(threads):
            return int(np.bincount(threads).argmax())
    return -1


@dataclass
class _Columns:
    """Events while a file is read: a few bytes each."""

    path: Path
    count: int = 0
    names: dict[str, int] = field(default_factory=dict[str, int])
    threads: dict[Any, int] = field(default_factory=dict[Any, int])
    kind: array[int] = field(default_factory=lambda: array("b"))
    begin: array[float] = field(default_factory=lambda: array("d"))
    length: array[float] = field(default_factory=lambda: array("d"))
    thread: array[int] = field(default_factory=lambda: array("i"))
    name: array[int] = field(default_factory=lambda: array("i"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    recorded: array[int] = field(default_factory=lambda: array("b"))
    _known: dict[tuple[str, str], Kind] = field(default_factory=dict[tuple[str, str], Kind])

    def add(self, event: Any) -> None:
        """Take an event; what is none of a rank's work is counted only.

        Raises:
            CommandError: it is no event.
        """
        self.count += 1
        try:
            if event is None or event.get("ph") != "X":
                return
            category, name = event.get("cat"), event["name"]
            kind = self._known.get((category, name)) or kind_of(category, name)
            if kind is None:
                return
            self._known[category, name] = kind
            begin, length = float(event["ts"]), float(event["dur"])
            arguments: dict[str, Any] = event.get("args") or {}
            correlation = int(arguments.get("correlation") or -1)
            if not (abs(begin) < _MAX_TIME and abs(length) < _MAX_TIME and abs(correlation) < _MAX_CORRELATION):
                raise ValueError  # noqa: TRY301 - the one refusal of an event
            thread = event["pid"], event["tid"]
            recorded = "Sequence number" in arguments and not arguments.get("Fwd thread id")
            self.kind.append(kind)
            self.begin.append(begin)
            self.length.append(max(0.0, length))
            self.correlation.append(correlation)
            self.recorded.append(recorded)
            self.thread.append(self.threads.setdefault(thread, len(self.threads)))
            self.name.append(self.names.setdefault(name, len(self.names)))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise CommandError(
                f"{self.path}: event {self.count} must be one of torch's, got {str(event)[:80]!r}"
            ) from None

    def events(self) -> Events:
        """Return what was taken, ordered by begin; of two with the same, the longer first."""
        begin, kind = np.array(self.begin), np.array(self.kind, np.int8)
        thread = np.array(self.thread, np.int32)
        end = _cut(begin, begin + np.array(self.length), thread, np.isin(kind, DEVICE))
        order = np.lexsort((begin - end, begin))
        return Events(
            kind=kind[order],
            begin=begin[order],
            end=end[order],
            thread=thread[order],
            name=np.array(self.name, np.int32)[order],
            correlation=np.array(self.correlation, np.int64)[order],
            recorded=np.array(self.recorded, np.bool_)[order],
        )


def _cut(begin: Times, end: Times, thread: NDArray[np.int32], on_device: Mask) -> Times:
    """Return ends that do not go beyond the begin of the stream's next event: a stream does one thing at a time.

    Tracers that lose an event give the one before it a length of seconds.
    """
    found = np.array(end)
    places = np.flatnonzero(on_device)
    places = places[np.lexsort((begin[places], thread[places]))]
    this, following = places[:-1], places[1:]
    later = (thread[this] == thread[following]) & (begin[following] > begin[this])
    this, following = this[later], following[later]
    found[this] = np.minimum(end[this], begin[following])
    return found
