"""A job that hangs, simulated: ranks in a mesh call collectives in order, some stop, and each leaves a dump."""

from __future__ import annotations

import json
import pickle
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Call = tuple[str, str]
"""Group and name of a collective."""


@dataclass
class RecordedJob:
    """Ranks that all call the collectives of their groups in the same order, so many of them without waiting."""

    groups: dict[str, tuple[int, ...]]
    program: list[Call]
    #: What a rank stops before, by its place in the program.
    stops: dict[int, int] = field(default_factory=dict[int, int])
    #: Collectives that a rank issues before it waits for the oldest.
    ahead: int = 1
    #: A rank's own program, where it is not that of all.
    programs: dict[int, list[Call]] = field(default_factory=dict[int, list[Call]])

    def __post_init__(self) -> None:
        self.ranks = max(rank for members in self.groups.values() for rank in members) + 1
        self.issued: list[list[Call]] = [[] for _ in range(self.ranks)]
        of_group: dict[str, set[int]] = {name: set(members) for name, members in self.groups.items()}
        self._own: list[list[Call]] = [[] for _ in range(self.ranks)]
        for call in self.program:
            for rank in of_group[call[0]] - self.programs.keys():
                self._own[rank].append(call)
        for rank, program in self.programs.items():
            self._own[rank] = [call for call in program if rank in of_group[call[0]]]
        self._arrived: dict[tuple[str, int], set[int]] = {}
        self._numbers: list[list[int]] = [[] for _ in range(self.ranks)]
        self._play()

    def done(self, rank: int, place: int) -> bool:
        """Whether the collective that a rank issued at this place has been joined by all members."""
        group, _ = self.issued[rank][place]
        return len(self._arrived[group, self._numbers[rank][place]]) == len(self.groups[group])

    def culprits(self) -> set[int]:
        """Ranks that stopped and are waited for, and that may not be waiting themselves for what they have issued."""
        missing: set[int] = set()
        for (group, _), arrived in self._arrived.items():
            missing |= set(self.groups[group]) - arrived
        idle = {rank for rank in self.stops if all(self.done(rank, place) for place in range(len(self.issued[rank])))}
        return missing & idle

    def write(self, folder: Path, *, as_pickle: bool, left_out: AbstractSet[int] = frozenset()) -> None:
        """Write a dump for each rank."""
        for rank in set(range(self.ranks)) - left_out:
            dump = self.dump(rank)
            content = pickle.dumps(dump, protocol=2) if as_pickle else json.dumps(dump).encode()
            (folder / f"nccl_trace_rank_{rank}").write_bytes(content)

    def dump(self, rank: int) -> dict[str, Any]:
        """What the flight recorder of a rank says."""
        return {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": _description(name), "ranks": str(list(members))}
                for name, members in self.groups.items()
                if rank in members
            },
            "entries": [self._entry(rank, place) for place in range(len(self.issued[rank]))],
        }

    def _entry(self, rank: int, place: int) -> dict[str, Any]:
        group, name = self.issued[rank][place]
        done = self.done(rank, place)
        return {
            "record_id": place,
            "process_group": (group, _description(group)),
            "collective_seq_id": self._numbers[rank][place],
            "p2p_seq_id": 0,
            "profiling_name": f"nccl:{name}",
            "is_p2p": False,
            "input_sizes": [[1024]],
            "input_dtypes": ["Float"],
            "state": "completed" if done else "started",
            "retired": done,
            "frames": [{"filename": "train.py", "line": place, "name": "step"}],
        }

    def _play(self) -> None:
        moved = True
        while moved:
            moved = False
            for rank in range(self.ranks):
                while self._issue(rank):
                    moved = True

    def _issue(self, rank: int) -> bool:
        own, place = self._own[rank], len(self.issued[rank])
        if place >= len(own) or place >= self.stops.get(rank, len(own)):
            return False
        if place >= self.ahead and not self.done(rank, place - self.ahead):
            return False
        group, _ = own[place]
        number = 1 + sum(each == group for each, _ in self.issued[rank])
        self.issued[rank].append(own[place])
        self._numbers[rank].append(number)
        self._arrived.setdefault((group, number), set()).add(rank)
        return True


def mesh(ranks: int, tensor: int, steps: int) -> tuple[dict[str, tuple[int, ...]], list[Call]]:
    """Return the groups and the program of tensor-parallel ranks, each of them with replicas."""
    groups = {"0": tuple(range(ranks))}
    groups |= {f"tp{first}": tuple(range(first, first + tensor)) for first in range(0, ranks, tensor)}
    groups |= {f"dp{first}": tuple(range(first, ranks, tensor)) for first in range(tensor)}
    step: list[Call] = [(name, "all_reduce") for name in groups if name.startswith("tp")] * 2
    step += [(name, "reduce_scatter") for name in groups if name.startswith("dp")]
    step += [("0", "all_reduce")]
    return groups, step * steps


def _description(group: str) -> str:
    return "default_pg" if group == "0" else f"mesh_{group.rstrip('0123456789') or group}"
