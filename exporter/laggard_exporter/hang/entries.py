"""The entries of a dump: which collectives, sends and receives of each group are done, and which are open.

Format: torch's FlightRecorder, version 2.x; `entries` in the order in which they were issued, `pg_config` with the
members of each group, `pg_status` with how far each has come. A recorder without entries leaves the key out as JSON.
Gloo (torch 2.15) fills `pg_config` with another group's ranks under an empty name, leaves out sends and receives but
counts them in `op_id` and `pg_status`, and never leaves the state `scheduled`: there only `retired` shows the end.
Where a recorder does learn of ends, what is retired and not completed was given up: its communicator was aborted.

Other backends than NCCL, XCCL and Gloo, such as nccl2, which is torch 2.15's `nccl`, are recorded by hooks. These count
all calls in `pg_status`, name no end of a batch, and take its sends and receives for completed once they are issued.

Between the start and the end of coalescing torch records each call without events, so that it stays `scheduled` for
ever, and then an end that has the state. All have one number, and the newest of them speaks for the number.

Asked for active calls alone (`TORCH_INCLUDE_ONLY_ACTIVE`, nvidia-resiliency-ext) torch leaves out what has ended, the
ends of coalesced calls too, but not their parts: so a part that ended with its call stays there, and looks open.

A process that destroys its groups and makes them again, such as after a restart in place, gives them the same names and
counts again from 1, and its recorder goes on: of groups of one name only the one with the highest number is read.

Sends and receives have no number that both sides share. Each side of a transfer names the other, by its place in the
group, and a communicator works on transfers in order: before one that is done, those of its peer and direction are.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, cast

from laggard_exporter.hang.dump import DEFAULT_GROUP, Dump, Group, Operation, Transfer

#: How the operation is named that ends coalescing.
_COALESCED = "coalesced"
_INPUT, _OUTPUT = ("input",), ("output",)
#: Sides on which the members of a collective must agree in size, of one tensor on each side and of several: each member
#: may gather or scatter a part of its own size.
_SIDES: tuple[tuple[re.Pattern[str], tuple[str, ...], tuple[str, ...]], ...] = (
    (re.compile(r"_?all_?to_?all"), (), ()),
    (re.compile(r"_?all_?gather"), _INPUT + _OUTPUT, _OUTPUT),
    (re.compile(r"_?reduce_?scatter"), _INPUT + _OUTPUT, _INPUT),
    (re.compile(r"_?scatter"), _OUTPUT, _OUTPUT),
    (re.compile(r"_?gather|_?reduce|_?broadcast"), _INPUT, _INPUT),
    (re.compile(""), _INPUT + _OUTPUT, _INPUT + _OUTPUT),
)
#: Torch numbers groups as they are made.
_FIRST_GROUP = "0"
_COMPLETED = "completed"
_SHOWN_SIZES = 4
_GLOO = "gloo"
#: The backend whose watchdog asks its devices, before the name of an operation.
_NCCL = "nccl:"
#: Backends that record their calls themselves, Huawei's by a copy of NCCL's recorder.
_NATIVE = ("gloo:", "xccl:", "hccl:", _NCCL)
_TRANSFER = re.compile(r"send (?P<me>\d+)->(?P<peer>\d+)|recv (?P<me_>\d+)<-(?P<peer_>\d+|\?)")
#: No member can end these before all members have issued them.
_NEEDS_ALL = re.compile(r"(?i)_?all_?(?:reduce|gather|to_?all)|_?reduce_?scatter|barrier")


@dataclass(frozen=True)
class _Call:
    """An entry, as far as it decides anything."""

    operation: Operation
    done: bool
    transfer: bool


class Reading:
    """The entries of a dump's parts, put together by the number that they have in their group."""

    def __init__(self, rank: int, members: Mapping[str, tuple[int, ...] | None]) -> None:
        self._rank, self._members = rank, members
        self._newest: dict[Group, int] = {}
        self._open: dict[Group, list[Operation]] = {}
        self._done: dict[Group, int] = {}
        self._ended: dict[Group, int] = {}
        self._passed: dict[tuple[Group, int], Operation] = {}
        self._numbers: dict[Group, tuple[int, int]] = {}
        self._transfers: dict[tuple[Group, str], Transfer] = {}
        self._created: list[int] = []
        #: Those that the rank is a member of, whether it has used them or not.
        self._groups: list[Group] = []
        self._truncated = self._short = self._hidden = self._sends = False
        self._timeout = 0
        self.read = 0
        #: Why the first unreadable entry cannot be read.
        self.damaged: Exception | None = None

    def add(self, part: Mapping[str, Any]) -> None:
        """Take what one recorder says."""
        entries: list[Any] = part.get("entries") or []
        learns_ends = any(_tells_ends(entry) for entry in entries)
        hooked = bool(entries) and _is_hooked(entries[-1])
        records: list[int] = []
        ordered: list[_Call] = []
        replaced = _replaced(entries)
        calls: dict[tuple[Group, int], list[_Call]] = {}
        transfers: dict[tuple[Group, Any], list[_Call]] = {}
        by_id: dict[str, Group] = {}
        uncounted: set[Group] = set()
        for entry in entries:
            try:
                over = bool(replaced) and _number(entry.get("pg_id")) in replaced
                call = None if over else self._call(entry, learns_ends=learns_ends)
                records.append(int(entry.get("record_id", 1)))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                self.damaged = self.damaged or error
                continue
            if call is None:
                continue
            ordered.append(call)
            group = by_id[str(entry.get("pg_id"))] = call.operation.group
            if call.transfer:
                # It has the number of the newest collective before it.
                if "collective_seq_id" in entry:
                    self._newest[group] = max(self._newest.get(group, 0), call.operation.sequence)
                transfers.setdefault((group, entry.get("p2p_seq_id")), []).append(call)
            else:
                calls.setdefault((group, call.operation.sequence), []).append(call)
            if call.transfer or entry.get("p2p_seq_id"):
                uncounted.add(group)
                self._sends = True
            elif group.gloo and entry.get("op_id", call.operation.sequence) != call.operation.sequence:
                uncounted.add(group)
                self._hidden = True
        self.read += len(records)
        truncated = min(records, default=0) > 0
        self._truncated |= truncated
        none_done = not any(call.done for each in (calls, transfers) for known in each.values() for call in known)
        self._short |= truncated and none_done
        gaps = len(set(records)) <= max(records, default=0) - min(records, default=0)
        self._add_transfers(transfers, active=none_done and gaps)
        self._add_unsure(ordered if hooked else [])
        for each in calls.values():
            # Of the oldest call that is left, some parts may have made room for newer entries.
            whole = not (truncated or self.damaged) or each[0] is not ordered[0]
            self._add_calls(each, whole=whole)
        configuration: Mapping[str, Any] = part.get("pg_config") or {}
        status: Any = part.get("pg_status")
        counters = cast("dict[str, Any]", status) if isinstance(status, dict) and not hooked else {}
        self._compare_with_status(counters, _numbered(self._listed(configuration), counters, by_id), uncounted)
        for name, about in configuration.items():
            # Gloo has only a group without a name there, whichever was made last.
            mine = (name, str(about.get("desc", ""))) if name else (_FIRST_GROUP, DEFAULT_GROUP)
            self._groups.append(Group(*mine, self._members.get(mine[0]), gloo=not name))

    def _call(self, entry: Mapping[str, Any], *, learns_ends: bool) -> _Call:
        name, description = entry["process_group"]
        backend, _, operation = str(entry["profiling_name"]).rpartition(":")
        group = Group(str(name), str(description), self._members.get(str(name)), backend == _GLOO)
        sequence = entry["collective_seq_id"] if "collective_seq_id" in entry else entry["seq_id"]
        if not isinstance(sequence, int):
            raise TypeError("collective_seq_id must be a number")
        state = entry.get("state")
        if state is None and "retired" not in entry:
            raise KeyError("state")
        created, timeout = entry.get("time_created_ns"), entry.get("timeout_ms")
        created = created if isinstance(created, int) else 0
        timeout = timeout * 10**6 if isinstance(timeout, int) else 0
        self._timeout = max(self._timeout, timeout)
        self._created += [created] if created else []
        retired = bool(entry.get("retired"))
        if state == _COMPLETED:
            # The end of what torch gave up comes from the abort of its communicator.
            ended = entry.get("time_discovered_completed_ns")
            done = not (retired and created and timeout and isinstance(ended, int) and ended - created > timeout)
        else:
            done = retired and not (learns_ends and state)
        return _Call(
            Operation(group, sequence, operation, _shape(operation, entry), state != "scheduled"),
            done=done,
            transfer=bool(entry.get("is_p2p", operation.startswith(("send ", "recv ")))),
        )

    def _add_calls(self, calls: list[_Call], *, whole: bool) -> None:
        """Take the calls of one number, of which the newest speaks for all."""
        operation = calls[-1].operation
        group, sequence = operation.group, operation.sequence
        if len(calls) > 1 and not _ends_coalescing(calls[-1]):
            # Between the start and the end of coalescing: the device was handed nothing yet.
            self._newest.setdefault(group, 0)
            return
        self._newest[group] = max(self._newest.get(group, 0), sequence)
        lowest, highest = self._numbers.get(group, (sequence, sequence))
        self._numbers[group] = min(lowest, sequence), max(highest, sequence)
        if calls[-1].done:
            self._done[group] = max(self._done.get(group, 0), sequence)
            if _NEEDS_ALL.match(operation.name):
                self._ended[group] = max(self._ended.get(group, 0), sequence)
            elif len(calls) == 1:
                self._passed[group, sequence] = operation
        else:
            parts = [str(call.operation) for call in calls[:-1]]
            shape = (("of", _runs(parts)),) if parts and whole else operation.shape
            self._open.setdefault(group, []).append(replace(operation, shape=shape))

    def _add_transfers(self, transfers: Mapping[tuple[Group, Any], list[_Call]], *, active: bool) -> None:
        """Take the sends and receives by group and number, or those of them that a dump of active calls has."""
        alone = {key for key, calls in transfers.items() if len(calls) == 1 and not _ends_coalescing(calls[0])}
        batching = {group for group, _ in transfers.keys() - alone}
        for key, calls in transfers.items():
            group, number = key
            if not active or key not in alone:
                self._add_transfer(number if isinstance(number, int) else 0, calls)
            elif group not in batching:
                # The part of a batch that has ended, or a call that has not.
                name = calls[0].operation.name
                self._transfers.setdefault((group, name), Transfer(group, 0, name, None))

    def _add_unsure(self, ordered: list[_Call]) -> None:
        """Take the newest send or receive of each group for open, where no collective after it is done."""
        newest: dict[Group, str] = {}
        for call in ordered:
            if call.transfer:
                newest[call.operation.group] = call.operation.name
            elif call.done:
                newest.pop(call.operation.group, None)
        for group, name in newest.items():
            self._transfers.setdefault((group, name), Transfer(group, 0, name, None))

    def _add_transfer(self, number: int, calls: list[_Call]) -> None:
        """Take the sends and receives of one number, in the order in which they were issued."""
        batched = _ends_coalescing(calls[-1])
        if len(calls) > 1 and not batched:
            return  # between the start and the end of coalescing
        done = calls[-1].done
        for call in calls[:-1] if len(calls) > 1 else calls:
            group = call.operation.group
            name, peer = self._direction(group, call.operation.name)
            if done:
                self._transfers.pop((group, name), None)
            else:
                shape = " ".join(what for side, what in call.operation.shape if side.startswith("input"))
                self._transfers.setdefault((group, name), Transfer(group, number, name, peer, shape))

    def _direction(self, group: Group, name: str) -> tuple[str, int | None]:
        """Return a send or receive with ranks of the job in the place of those of its group, and the peer."""
        found = _TRANSFER.fullmatch(name)
        if found is None:
            return name, None
        me, peer = (_rank_at(group, found[side] or found[f"{side}_"]) for side in ("me", "peer"))
        if me != self._rank or peer is None:
            return name, None  # the group numbers its members in another way
        return f"send {me}->{peer}" if found["me"] else f"recv {me}<-{peer}", peer

    def _listed(self, configuration: Mapping[str, Any]) -> list[Group]:
        return [
            Group(name, str(about.get("desc", "")), self._members.get(name))
            for name, about in configuration.items()
            if name
        ]

    def _compare_with_status(
        self, status: Mapping[str, Any], groups: Mapping[str, Group], uncounted: set[Group]
    ) -> None:
        """Learn from the counters of groups what the entries do not say."""
        for key, counters in status.items():
            known = cast("dict[str, Any]", counters) if isinstance(counters, dict) else {}
            issued = _number(known.get("last_enqueued_collective"))
            group = groups.get(str(key))
            if group is None:
                # Others' entries took their room, or the recorder is switched off.
                self._truncated |= issued > 0
            elif group not in uncounted:  # else torch counts sends and receives there too
                self._short |= issued > 0 and group not in self._numbers
                self._newest[group] = max(self._newest.get(group, 0), issued)
        # A group has counters from its first call on.
        for key in groups.keys() - status.keys() if status else ():
            self._newest.setdefault(groups[key], 0)

    def _pending(self) -> Iterator[Operation]:
        """Yield the first collective of each group that is not done."""
        for group, operations in self._open.items():
            # A device works on the calls of a communicator in order; some calls that end with others never get a state.
            done = 0 if group.gloo else self._done.get(group, 0)
            later = [operation for operation in operations if operation.sequence > done]
            yield from sorted(later, key=lambda operation: operation.sequence)[:1]

    def dump(self) -> Dump:
        """Return what all of it says."""
        damaged, created = self.damaged is not None, sorted(self._created)
        if not self._truncated and not damaged:
            for group in self._groups:
                self._newest.setdefault(group, 0)
        return Dump(
            self._rank,
            tuple(self._pending()),
            self._newest,
            tuple(self._transfers.values()),
            self._truncated or damaged,
            damaged,
            self._short,
            self._numbers,
            (created[0], created[-1]) if created else (0, 0),
            max((later - call for call, later in pairwise(created)), default=0),
            self._timeout,
            self._ended,
            self._hidden,
            groups=tuple(self._groups),
            sends=self._sends,
            passed={key: each for key, each in self._passed.items() if key[1] > self._ended.get(key[0], 0)},
        )


def _numbered(listed: list[Group], status: Mapping[str, Any], by_id: Mapping[str, Group]) -> dict[str, Group]:
    """Return the groups of a recorder by the number that the rank gives them, those too of which no entry is left.

    A rank numbers its groups as they are made. Torch names them by a number that grows likewise, on all ranks.
    """
    found: dict[str, Group] = {}
    # With more numbers than groups some are of groups that were made again.
    found.update((_FIRST_GROUP, group) for group in listed if group.is_default and len(status) <= len(listed))
    used = [group for group in listed if not group.is_default or _FIRST_GROUP in status]
    if len(used) == len(status) and all(each.isdecimal() for each in [*status, *(group.name for group in listed)]):
        ordered = sorted(used, key=lambda group: int(group.name))
        found |= zip(sorted(status, key=int), ordered, strict=True)
    agree = all(by_id.get(number, group) == group for number, group in found.items())
    return {**(found if agree else {}), **by_id}


def _replaced(entries: list[Any]) -> set[int]:
    """Return the numbers of groups in whose place the process has made another one of the same name and description."""
    known = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
    groups = {(str(entry.get("process_group")), _number(entry.get("pg_id"))) for entry in known}
    newest = dict(sorted(groups))
    return {number for name, number in groups if number < newest[name]}


def _tells_ends(entry: Any) -> bool:
    """Return whether the recorder of this entry learns when calls end."""
    if not isinstance(entry, dict):  # of a damaged file
        return False
    known = cast("dict[str, Any]", entry)
    return known.get("state") == _COMPLETED or str(known.get("profiling_name")).startswith(_NCCL)


def _is_hooked(entry: Any) -> bool:
    """Return whether the backend of this entry records nothing by itself."""
    name = cast("dict[str, Any]", entry).get("profiling_name") if isinstance(entry, dict) else None
    return isinstance(name, str) and ":" in name and not name.startswith(_NATIVE)


def _ends_coalescing(call: _Call) -> bool:
    return call.operation.name.endswith(_COALESCED)


def _rank_at(group: Group, place: str) -> int | None:
    """Return the rank of the job that has this place in a group, `None` where that is not known."""
    if place == "?":
        return None
    if group.members is None:
        return int(place) if group.is_default else None
    return group.members[int(place)] if int(place) < len(group.members) else None


def _number(value: Any) -> int:
    """Return a counter of a dump, which a pickle has as a number and JSON as text; 0 where it counts nothing."""
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return 0


@lru_cache(256)
def _sides(operation: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return on which sides members must agree in size: of one tensor, and of several."""
    return next((one, several) for names, one, several in _SIDES if names.match(operation.lower()))


def _shape(operation: str, entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return in what all members of a collective must agree: types and numbers of elements, whatever their shapes."""
    one, several = _sides(operation)
    lists = len(entry.get("input_sizes") or ()) > 1 or len(entry.get("output_sizes") or ()) > 1
    sides = several if lists else one
    found: list[tuple[str, str]] = []
    for side in sides:
        sizes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
        if sizes:
            elements = [math.prod(each) for each in cast("list[Any]", sizes)]
            kinds = " ".join(sorted({str(each) for each in cast("list[Any]", types or [])}))
            # Torch 2.4 records no types: another side, so that nobody differs by what another dump leaves out.
            found.append((side if types else f"{side} elements", f"{kinds}[{_amounts(elements)}]"))
    return tuple(found)


def _runs(parts: list[str]) -> str:
    """Return the parts of a coalesced call as text: the first few in full, all of them in a mark."""
    runs = [f"{len(list(same))} x {part}" for part, same in groupby(parts)]
    if len(runs) <= _SHOWN_SIZES:
        return " + ".join(runs)
    return f"{len(parts)} calls, {zlib.crc32(' '.join(parts).encode()):08x}"


def _amounts(elements: list[int]) -> str:
    """Return numbers of elements as text: the first few in full, all of them in the sum."""
    if len(elements) <= _SHOWN_SIZES:
        return ", ".join(map(str, elements))
    digest = zlib.crc32(",".join(map(str, elements)).encode())
    return f"{sum(elements)} in {len(elements)} tensors, {digest:08x}"
