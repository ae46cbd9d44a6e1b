"""What a flight recorder writes, call by call, for tests of how dumps are judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from laggard_exporter.hang.dump_file import parse
from laggard_exporter.hang.verdict import Reason, Verdict, judge

WORLD = {"0": ("default_pg", (0, 1, 2, 3))}
SECOND = 10**9


class Recorder:
    """What one rank's recorder holds, as torch 2.10 writes it."""

    def __init__(
        self, groups: dict[str, tuple[str, tuple[int, ...]]], *, backend: str = "nccl", start: int = 0
    ) -> None:
        self._groups, self._backend = groups, backend
        self.entries: list[dict[str, Any]] = []
        self.issued: dict[str, int] = {}
        self._handed: dict[str, int] = {}
        self._pairs = 0
        #: Groups that were made before these.
        self._before = 0
        self.now = 1_700_000_000 * SECOND + start

    def _entry(
        self, group: str, name: str, state: str, *, p2p: bool, sizes: list[list[int]], out: list[list[int]]
    ) -> None:
        self.now += SECOND
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": self._before + list(self._groups).index(group),
                "process_group": (group, self._groups[group][0]),
                "collective_seq_id": self.issued.get(group, 0),
                "p2p_seq_id": self._pairs,
                "profiling_name": f"{self._backend}:{name}",
                "time_created_ns": self.now,
                "input_sizes": sizes,
                "input_dtypes": ["Float"] * len(sizes),
                "output_sizes": out,
                "output_dtypes": ["Float"] * len(out),
                "state": state,
                "retired": state == "completed",
                "timeout_ms": 600_000,
                "is_p2p": p2p,
            }
        )

    def restart(self) -> None:
        """Destroy the groups, and make them again under the same names."""
        self._before += len(self._groups)
        self.issued, self._handed = {}, {}

    def call(
        self, group: str, name: str = "all_reduce", *, state: str = "completed", size: int = 64, ranks: int = 1
    ) -> None:
        """Issue a collective."""
        self.issued[group] = self.issued.get(group, 0) + 1
        self._handed[group] = self.issued[group]
        self._entry(group, name, state, p2p=False, sizes=[[size]], out=[[size * ranks]])

    def coalesced(self, group: str, parts: int | Iterable[int], *, end: str | None = "completed") -> None:
        """Issue as many collectives together, or those of these sizes; without an end the rank is still among them."""
        self.issued[group] = self.issued.get(group, 0) + 1
        for size in range(100, 100 + parts) if isinstance(parts, int) else parts:
            self._entry(group, "_broadcast_oop", "scheduled", p2p=False, sizes=[[size]], out=[[size]])
        if end is not None:
            self._handed[group] = self.issued[group]
            self._entry(group, "ALLGATHER_coalesced", end, p2p=False, sizes=[], out=[])

    def batched(self, group: str, names: list[str], *, end: str = "completed") -> None:
        """Issue sends and receives together."""
        self._pairs += 1
        for name in names:
            self._entry(group, name, "scheduled", p2p=True, sizes=[[8]], out=[[8]])
        self._entry(group, "coalesced", end, p2p=True, sizes=[], out=[])

    def transfer(self, group: str, name: str, *, batched: bool = False, state: str = "completed") -> None:
        """Issue a send or a receive."""
        if batched:
            self.batched(group, [name], end=state)
        else:
            self._pairs += 1
            self._entry(group, name, state, p2p=True, sizes=[[8]], out=[[8]])

    def dump(self, *, keep: int = 2000) -> dict[str, Any]:
        """What is written, with the newest entries alone where there is room for no more."""
        status = {
            str(self._before + place): {"last_enqueued_collective": self._handed.get(group, -1)}
            for place, group in enumerate(self._groups)
        }
        configuration = {
            name: {"name": name, "desc": about, "ranks": str(list(members))}
            for name, (about, members) in self._groups.items()
        }
        found: dict[str, Any] = {"version": "2.10", "pg_config": configuration, "pg_status": status}
        if self.entries:
            found["entries"] = self.entries[-keep:]
        return found


def verdict(dumps: dict[int, dict[str, Any]], ranks: int | None = None) -> Verdict:
    """Judge dumps."""
    return judge({rank: parse(json.dumps(dump).encode(), rank) for rank, dump in dumps.items()}, ranks)


def named(found: Verdict) -> dict[int, Reason]:
    """The culprits with their reasons."""
    return {culprit.rank: culprit.reason for culprit in found.culprits}


def job(program: Callable[[Recorder, int], None], ranks: int = 4) -> dict[int, dict[str, Any]]:
    """Return the dumps of ranks that each run a program."""
    found: dict[int, dict[str, Any]] = {}
    for rank in range(ranks):
        recorder = Recorder({"0": ("default_pg", tuple(range(ranks)))})
        program(recorder, rank)
        found[rank] = recorder.dump()
    return found


def active(dump: dict[str, Any]) -> dict[str, Any]:
    """What torch writes if asked for active calls alone."""
    return {**dump, "entries": [each for each in dump["entries"] if each["state"] != "completed"]}
