"""Jobs that hang, with known truth: a model of how NCCL and gloo issue, match and end calls, and of what torch records.

The host of a rank issues calls up to some ahead of its device, and the device works on them in their order. A
collective ends when all members work on it, a send or receive when both sides do; a small send of NCCL ends without its
receive. A batch ends when all its sends and receives do. Gloo's host waits for each call.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

SECOND = 10**9
START = 1_700_000_000 * SECOND
TIMEOUT = 600 * SECOND

#: A transfer, by who sends and who receives.
Way = tuple[int, int]


@dataclass(frozen=True)
class Call:
    """What a rank issues: a collective, a coalesced one, a send or receive, or a batch of them."""

    group: str
    name: str = "all_reduce"
    #: Calls that are coalesced to this one.
    parts: int = 0
    #: The sends and receives of a batch, or the one of a plain call.
    ways: tuple[Way, ...] = ()
    batched: bool = False


@dataclass(frozen=True)
class Shape:
    """Along which axes a job is parallel."""

    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    #: Members of a group of experts, a part of those along the data axis.
    expert: int = 1

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.pipeline * self.data * self.tensor


@dataclass
class Job:
    """Ranks in groups along each axis, some of which stop or leave a call out."""

    chance: random.Random
    shape: Shape
    steps: int = 3
    gloo: bool = False
    #: Sends and receives are issued in batches.
    batched: bool = True
    #: Before which of its calls a rank stops.
    stops: dict[int, int] = field(default_factory=dict[int, int])
    #: Which of its calls a rank leaves out.
    skips: dict[int, int] = field(default_factory=dict[int, int])
    #: Who brings another size to the call at this place, which then never ends.
    wrong: tuple[int, int] | None = None
    #: Whose devices do not begin with the call at this place.
    busy: dict[int, int] = field(default_factory=dict[int, int])
    #: Torch records when devices begin (TORCH_NCCL_ENABLE_TIMING).
    timed: bool = True
    #: Torch has given up what is open, and aborted the communicators.
    aborted: bool = False
    #: When it began.
    start: int = START

    def __post_init__(self) -> None:
        self.ranks = self.shape.ranks
        self.ahead = 1 if self.gloo else self.chance.randint(1, 4)
        self.eager = not self.gloo and self.chance.random() < 0.3
        self.groups: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._names: dict[tuple[str, tuple[int, ...]], str] = {}
        self._mine: list[list[str]] = [[] for _ in range(self.ranks)]
        self._group("default_pg", tuple(range(self.ranks)))
        self._programs = [self._program(rank) for rank in range(self.ranks)]
        for rank, place in self.skips.items():
            del self._programs[rank][place]
        self.issued = [0] * self.ranks
        self.done = [0] * self.ranks
        self._numbers = [self._numbered(rank) for rank in range(self.ranks)]
        self._times: dict[tuple[int, int], int] = {}
        # A rank numbers the groups that it is in, as they are made.
        self._ids = [{name: number for number, name in enumerate(mine)} for mine in self._mine]
        self._texts = {name: str(list(members)) for name, (_, members) in self.groups.items()}
        self.end = self._run()

    def program(self, rank: int) -> list[Call]:
        """What a rank issues, if nothing stops it."""
        return self._programs[rank]

    def waits(self, rank: int) -> bool:
        """Whether the training thread of a rank is in a call, which is certain with gloo alone."""
        return self.issued[rank] > self.done[rank]

    def known_culprits(self, dumps: set[int], *, keep: int) -> set[int]:
        """Who stopped with nothing open, and has not issued what a rank with a dump waits in.

        Where a rank's ring has no entry of the group left, its dump does not show that. Gloo does not say who is in a
        group, so there an entry is needed in any case.
        """
        found: set[int] = set()
        waited = [(call, number) for rank in dumps for call, number in self._open(rank)]
        for rank in self.stops.keys() & dumps:
            if self.waits(rank):
                continue
            entries = self._entries(rank, keep)
            left = {entry["process_group"][0] for entry in entries}
            mine = {number for numbers in self._numbers[rank][: self.issued[rank]] for number in numbers}
            for call, numbers in waited:
                if self.gloo and call.ways:
                    continue
                members = {each for way in call.ways for each in way} or self.groups[call.group][1]
                none = not call.ways and call.group not in left
                unseen = none and (len(entries) >= keep or (self.gloo and call.group != "0"))
                if not unseen and rank in members:
                    found |= {rank for number in numbers if self._concerns(rank, call, number) and number not in mine}
        return found

    @staticmethod
    def _concerns(rank: int, call: Call, number: tuple[Any, ...]) -> bool:
        return not call.ways or rank in number[1]

    def dump(self, rank: int, *, keep: int, active: bool = False) -> dict[str, Any]:
        """What the recorder of a rank holds, or what of it is active."""
        entries = self._entries(rank, 10**9)
        used = {entry["process_group"][0] for entry in entries}
        # A communicator may be made when it is first used, that of all ranks before: here for dumps of active calls.
        members = {
            name: {"name": name, "desc": self.groups[name][0], "ranks": self._texts[name]}
            for name in self._mine[rank]
            if name in used or name == "0" or not active
        }
        found: dict[str, Any] = {
            "version": "2.10",
            "pg_config": {"": {"name": "", "desc": "", "ranks": "[0]"}} if self.gloo else members,
            "pg_status": {
                str(entry["pg_id"]): {
                    "last_enqueued_collective": str(
                        entry["op_id" if self.gloo else "p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
                    )
                }
                for entry in entries
            },
        }
        entries = [entry for entry in entries[-keep:] if not (active and entry["state"] == "completed")]
        return {**found, "entries": entries} if entries else found

    def _entries(self, rank: int, keep: int) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        collectives: dict[str, int] = {}
        transfers: dict[str, int] = {}
        operations: dict[str, int] = {}
        for place in range(self.issued[rank]):
            call = self._programs[rank][place]
            counter = transfers if call.ways else collectives
            counter[call.group] = counter.get(call.group, 0) + 1
            parts = ["_broadcast_oop"] * call.parts + [self._side(call, rank, way) for way in call.ways]
            names = parts if call.ways and not call.batched else [*parts, self._end(call)]
            done = place < self.done[rank]
            for name in names:
                last = name is names[-1]
                operations[call.group] = operations.get(call.group, 0) + 1
                # Gloo's leaves sends and receives out, but counts them.
                if not (self.gloo and call.ways):
                    begun = self.timed and place == self.done[rank] and self.busy.get(rank) != place
                    state = "started" if begun else "scheduled"
                    state = "scheduled" if self.gloo or not last else "completed" if done else state
                    wrong = self.wrong is not None and (rank, place) == self.wrong
                    sizes = [] if last and len(names) > 1 else [[1000 if wrong else 1024]]
                    entries.append(
                        {
                            "record_id": len(entries),
                            "pg_id": self._ids[rank][call.group],
                            "process_group": (call.group, self.groups[call.group][0]),
                            "collective_seq_id": collectives.get(call.group, 0),
                            "p2p_seq_id": transfers.get(call.group, 0) if not self.gloo else 0,
                            "op_id": operations[call.group],
                            "profiling_name": f"{'gloo' if self.gloo else 'nccl'}:{name}",
                            "time_created_ns": self._times[rank, place],
                            "input_sizes": sizes,
                            "input_dtypes": ["Float"] * len(sizes),
                            "output_sizes": sizes,
                            "output_dtypes": ["Float"] * len(sizes),
                            "state": state,
                            "retired": last and (done or self.aborted),
                            "timeout_ms": TIMEOUT // 10**6,
                            "is_p2p": bool(call.ways),
                        }
                    )
        return entries[-keep:]

    def _side(self, call: Call, rank: int, way: Way) -> str:
        """What a recorder calls a side of a transfer: by places in the group."""
        sender, receiver = (self.groups[call.group][1].index(each) for each in way)
        return f"send {sender}->{receiver}" if rank == way[0] else f"recv {receiver}<-{sender}"

    @staticmethod
    def _end(call: Call) -> str:
        return "coalesced" if call.ways else "ALLGATHER_coalesced" if call.parts else call.name

    def _group(self, about: str, members: tuple[int, ...]) -> str:
        """Return the name of a group, which is made where it is new."""
        name = self._names.setdefault((about, members), str(len(self.groups)))
        if name not in self.groups:
            self.groups[name] = (about, members)
            for rank in members:
                self._mine[rank].append(name)
        return name

    def _program(self, rank: int) -> list[Call]:
        shape = self.shape
        width = shape.data * shape.tensor
        stage, place = divmod(rank, width)
        first = rank - place % shape.tensor
        tensor = self._group("mesh_tp", tuple(range(first, first + shape.tensor)))
        along = tuple(range(stage * width + place % shape.tensor, (stage + 1) * width, shape.tensor))
        data = self._group("mesh_dp", along)
        block = along.index(rank) // shape.expert * shape.expert
        expert = self._group("mesh_ep", along[block : block + shape.expert])
        layer = [Call(tensor)] * (shape.tensor > 1) + [Call(expert, "all_to_all")] * 2 * (shape.expert > 1)
        found: list[Call] = []
        for _ in range(self.steps):
            for back in (False, True):
                before, after = (rank + width, rank - width) if back else (rank - width, rank + width)
                found += self._stage(rank, before, after, layer)
            found += [Call(data, parts=3), Call(data, "reduce_scatter")] if shape.data > 1 else []
            found.append(Call("0"))
        return found

    def _stage(self, rank: int, before: int, after: int, layer: list[Call]) -> list[Call]:
        """Two micro-batches: each is received, worked on and sent; with batches, sent as the next one is received."""
        receive = ((before, rank),) if 0 <= before < self.ranks else ()
        send = ((rank, after),) if 0 <= after < self.ranks else ()
        width = self.shape.data * self.shape.tensor
        group = self._group("mesh_pp", tuple(range(rank % width, self.ranks, width)))
        if self.batched:
            middle = [*layer, Call(group, ways=send + receive, batched=True)] if send + receive else layer
            sides = [Call(group, ways=ways, batched=True) for ways in (receive, send) if ways]
            return [*sides[: bool(receive)], *middle, *layer, *sides[bool(receive) :]]
        micro = [*(Call(group, ways=receive) for _ in receive), *layer, *(Call(group, ways=send) for _ in send)]
        return micro * 2

    def _numbered(self, rank: int) -> list[tuple[tuple[Any, ...], ...]]:
        """For each call the numbers of what it consists of, which are the same on all sides."""
        counts: dict[Any, int] = {}
        found: list[tuple[tuple[Any, ...], ...]] = []
        for call in self._programs[rank]:
            numbers: list[tuple[Any, ...]] = []
            for way in call.ways or (None,):
                key = (call.group, way)
                counts[key] = counts.get(key, 0) + 1
                numbers.append((*key, counts[key]))
            found.append(tuple(numbers))
        return found

    def _open(self, rank: int) -> list[tuple[Call, tuple[tuple[Any, ...], ...]]]:
        places = range(self.done[rank], self.issued[rank])
        return [(self._programs[rank][place], self._numbers[rank][place]) for place in places]

    def _over(self, rank: int, number: tuple[Any, ...], working: dict[tuple[Any, ...], set[int]]) -> bool:
        """Whether a rank is done with a part of what it works on."""
        group, way, _ = number
        there = working[number]
        if way is None:
            return len(there) == len(self.groups[group][1])
        return len(there) == len(set(way)) or (self.eager and rank == way[0])

    def _run(self) -> int:
        working: dict[tuple[Any, ...], set[int]] = {}
        bad = self._numbers[self.wrong[0]][self.wrong[1]] if self.wrong else None
        now, moved = self.start, True
        while moved:
            moved = False
            for rank in self.chance.sample(range(self.ranks), self.ranks):
                now += SECOND // 1000
                program = self._programs[rank]
                limit = min(len(program), self.stops.get(rank, len(program)), self.done[rank] + self.ahead)
                for place in range(self.issued[rank], limit):
                    self._times[rank, place] = now
                    self.issued[rank], moved = place + 1, True
                place = self.done[rank]
                if place < self.issued[rank] and self.busy.get(rank) != place:
                    numbers = self._numbers[rank][place]
                    for number in numbers:
                        working.setdefault(number, set()).add(rank)
                    if numbers != bad and all(self._over(rank, number, working) for number in numbers):
                        self.done[rank], moved = place + 1, True
        return now
