"""Jobs that hang, with known truth: a model of how NCCL and gloo issue, match and end calls, and of what torch records.

The host of a rank issues calls up to some ahead of its device, and the device works on them in their order. A
collective ends when all members work on it, a batch of sends and receives when each has its counterpart. Gloo's host
waits for each call.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

SECOND = 10**9


@dataclass(frozen=True)
class Call:
    """What a rank issues: a collective, a coalesced one, or a batch of sends and receives with other ranks."""

    group: str
    name: str = "all_reduce"
    parts: int = 0
    peers: tuple[int, ...] = ()


@dataclass
class Job:
    """Ranks in data-, tensor- and pipeline-parallel groups, some of which stop."""

    chance: random.Random
    pipeline: int
    data: int
    tensor: int
    steps: int = 3
    gloo: bool = False
    #: Before which of its calls a rank stops.
    stops: dict[int, int] = field(default_factory=dict[int, int])
    #: Who brings another size to the call at this place, which then never ends.
    wrong: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.ranks = self.pipeline * self.data * self.tensor
        self.ahead = 1 if self.gloo else self.chance.randint(1, 4)
        self.groups = {"0": ("default_pg", tuple(range(self.ranks)))}
        self._programs = [self._program(rank) for rank in range(self.ranks)]
        self.issued = [0] * self.ranks
        self.done = [0] * self.ranks
        self._numbers = [self._numbered(program) for program in self._programs]
        self._times: dict[tuple[int, int], int] = {}
        self._run()

    def program(self, rank: int) -> list[Call]:
        """What a rank issues, if nothing stops it."""
        return self._programs[rank]

    def known_culprits(self, dumps: set[int], *, keep: int) -> set[int]:
        """Who stopped with nothing open, and has not issued a collective that a rank with a dump waits in.

        Where a rank's ring has no entry of the group left, its dump does not show that.
        """
        found: set[int] = set()
        for rank in self.stops.keys() & dumps:
            if self.issued[rank] == self.done[rank]:
                entries = self.dump(rank, keep=keep).get("entries", ())
                left = {entry["process_group"][0] for entry in entries}
                mine = set(self._numbers[rank][: self.issued[rank]])
                waited = (
                    number
                    for other in dumps - {rank}
                    for call, number in self._open(other)
                    if not call.peers and rank in self.groups[call.group][1]
                    if call.group in left or len(entries) < keep
                )
                found |= {rank} if any(number not in mine for number in waited) else set()
        return found

    def dump(self, rank: int, *, keep: int) -> dict[str, Any]:
        """What the recorder of a rank holds."""
        entries: list[dict[str, Any]] = []
        collectives: dict[str, int] = {}
        transfers: dict[str, int] = {}
        enqueued: dict[str, int] = {}
        for place in range(self.issued[rank]):
            call = self._programs[rank][place]
            counter = transfers if call.peers else collectives
            counter[call.group] = counter.get(call.group, 0) + 1
            enqueued[call.group] = counter[call.group]
            names = ["_broadcast_oop"] * call.parts or [f"send {rank}->{peer}" for peer in call.peers]
            end = "coalesced" if call.peers else "ALLGATHER_coalesced" if call.parts else call.name
            for name in [*names, end]:
                last = name is end
                done, started = last and place < self.done[rank], last and place == self.done[rank]
                state = "completed" if done else "started" if started else "scheduled"
                wrong = self.wrong is not None and (rank, place) == self.wrong
                sizes = [] if last and names else [[1000 if wrong else 1024]]
                entries.append(
                    {
                        "record_id": len(entries),
                        "pg_id": list(self.groups).index(call.group),
                        "process_group": (call.group, self.groups[call.group][0]),
                        "collective_seq_id": collectives.get(call.group, 0),
                        "p2p_seq_id": transfers.get(call.group, 0),
                        "profiling_name": f"{'gloo' if self.gloo else 'nccl'}:{name}",
                        "time_created_ns": self._times[rank, place],
                        "input_sizes": sizes,
                        "input_dtypes": ["Float"] * len(sizes),
                        "output_sizes": sizes,
                        "output_dtypes": ["Float"] * len(sizes),
                        "state": "scheduled" if self.gloo else state,
                        "retired": done,
                        "timeout_ms": 600_000,
                        "is_p2p": bool(call.peers),
                    }
                )
        members = {
            name: {"name": name, "desc": about, "ranks": str(list(ranks))}
            for name, (about, ranks) in self.groups.items()
            if rank in ranks
        }
        found: dict[str, Any] = {
            "version": "2.10",
            "pg_config": {"": {"name": "", "desc": "", "ranks": "[0]"}} if self.gloo else members,
            "pg_status": {
                str(list(self.groups).index(group)): {"last_enqueued_collective": str(number)}
                for group, number in enqueued.items()
            },
        }
        # Gloo's leaves sends and receives out.
        kept = [entry for entry in entries if not (self.gloo and entry["is_p2p"])][-keep:]
        return {**found, "entries": kept} if kept else found

    def _group(self, kind: str, members: tuple[int, ...]) -> str:
        name = f"{kind}{members[0]}"
        self.groups.setdefault(name, (f"mesh_{kind}", members))
        return name

    def _program(self, rank: int) -> list[Call]:
        width = self.data * self.tensor
        stage, place = divmod(rank, width)
        first = rank - place % self.tensor
        tensor = self._group("tp", tuple(range(first, first + self.tensor)))
        base = stage * width + place % self.tensor
        data = self._group("dp", tuple(range(base, (stage + 1) * width, self.tensor)))
        found: list[Call] = []
        for _ in range(self.steps):
            for _ in range(2):
                if stage:
                    found.append(self._pair(rank - width, rank))
                found += [Call(tensor)] if self.tensor > 1 else []
                if stage < self.pipeline - 1:
                    found.append(self._pair(rank, rank + width))
            found += [Call(data, parts=3), Call(data, "reduce_scatter")] if self.data > 1 else []
            found.append(Call("0"))
        return found

    def _pair(self, low: int, high: int) -> Call:
        return Call(
            self._group("pp", tuple(range(low % (self.data * self.tensor), self.ranks, self.data * self.tensor))),
            peers=(low, high),
        )

    @staticmethod
    def _numbered(program: list[Call]) -> list[tuple[Any, ...]]:
        counts: dict[Any, int] = {}
        found: list[tuple[Any, ...]] = []
        for call in program:
            key = (call.group, call.peers)
            counts[key] = counts.get(key, 0) + 1
            found.append((*key, counts[key]))
        return found

    def _open(self, rank: int) -> list[tuple[Call, tuple[Any, ...]]]:
        places = range(self.done[rank], self.issued[rank])
        return [(self._programs[rank][place], self._numbers[rank][place]) for place in places]

    def _run(self) -> None:
        working: dict[tuple[Any, ...], set[int]] = {}
        bad = self._numbers[self.wrong[0]][self.wrong[1]] if self.wrong else None
        now, moved = 1_700_000_000 * SECOND, True
        while moved:
            moved = False
            for rank in self.chance.sample(range(self.ranks), self.ranks):
                now += SECOND // 1000
                program = self._programs[rank]
                limit = min(len(program), self.stops.get(rank, len(program)), self.done[rank] + self.ahead)
                for place in range(self.issued[rank], limit):
                    self._times[rank, place] = now
                    self.issued[rank], moved = place + 1, True
                if self.done[rank] < self.issued[rank]:
                    call, number = program[self.done[rank]], self._numbers[rank][self.done[rank]]
                    there = working.setdefault(number, set())
                    there.add(rank)
                    needed = call.peers or self.groups[call.group][1]
                    if number != bad and there.issuperset(needed):
                        self.done[rank], moved = self.done[rank] + 1, True
