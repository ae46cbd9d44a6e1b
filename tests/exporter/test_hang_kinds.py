"""Kinds of dumps that torch writes: coalesced calls, sizes, counters, several recorders, attempts and jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard_exporter.hang.dump_file import DumpError, parse
from laggard_exporter.hang.facts import facts
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
        self.now = 1_700_000_000 * SECOND + start

    def _entry(
        self, group: str, name: str, state: str, *, p2p: bool, sizes: list[list[int]], out: list[list[int]]
    ) -> None:
        self.now += SECOND
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": list(self._groups).index(group),
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

    def call(
        self, group: str, name: str = "all_reduce", *, state: str = "completed", size: int = 64, ranks: int = 1
    ) -> None:
        """Issue a collective."""
        self.issued[group] = self.issued.get(group, 0) + 1
        self._handed[group] = self.issued[group]
        self._entry(group, name, state, p2p=False, sizes=[[size]], out=[[size * ranks]])

    def coalesced(self, group: str, parts: int, *, end: str | None = "completed") -> None:
        """Issue collectives together; without an end the rank is still among them."""
        self.issued[group] = self.issued.get(group, 0) + 1
        for part in range(parts):
            self._entry(group, "_broadcast_oop", "scheduled", p2p=False, sizes=[[100 + part]], out=[[100 + part]])
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
            str(place): {"last_enqueued_collective": self._handed.get(group, -1)}
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


@pytest.mark.parametrize("form", ["coalesced", "batched"])
@pytest.mark.parametrize("keep", [1, 3, 2000])
def test_parts_of_coalesced_calls_are_not_waited_in(form: str, keep: int) -> None:
    """They stay scheduled for ever; the rank that others wait for behind them is named, by rings of any length."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(WORLD)
        for step in range(4):
            if form == "coalesced":
                recorder.coalesced("0", 4)
            else:
                recorder.batched("0", [f"recv {rank}<-{rank - 1}", f"send {rank}->{rank + 1}"])
            if step < 3:
                recorder.call("0")
            elif rank != 2:
                recorder.call("0", state="started")
        dumps[rank] = recorder.dump(keep=keep)
    assert named(verdict(dumps)) == {2: Reason.OUTSIDE}


def test_a_rank_between_start_and_end_of_coalescing_is_not_yet_in_the_collective() -> None:
    """The others have handed theirs to their devices; what it waits for is its own code."""
    found = verdict(job(lambda each, rank: each.coalesced("0", 3, end=None if rank == 1 else "started")))
    assert named(found) == {1: Reason.OUTSIDE}


def test_a_batch_of_sends_and_receives_that_goes_on_blames_nobody() -> None:
    """Its end has the state. Each end of it waits in a collective for the rank that is in it."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.batched("0", ["recv 1<-0", "send 1->2"], end="started" if rank == 1 else "completed")
        if rank != 1:
            recorder.call("0", state="started")

    found = verdict(job(program))
    remark = (
        "ranks 0-2 wait for each other in sends and receives: "
        "their order differs, or one has issued one early and is in its own code"
    )
    assert (named(found), found.remarks) == ({}, (remark,))


SIZED = {
    "all_reduce": 1,
    "allreduce": 1,
    "all_reduce_barrier": 1,
    "broadcast": 1,
    "_broadcast_oop": 1,
    "reduce": 1,
    "barrier": 1,
    "all_gather": 4,
    "_all_gather_base": 4,
    "all_gather_into_tensor_coalesced": 4,
    "reduce_scatter": 1,
    "_reduce_scatter_base": 1,
    "reduce_scatter_tensor_coalesced": 1,
    "allreduce_coalesced": 1,
    "gather": 1,
    "scatter": 1,
}


@pytest.mark.parametrize("name", SIZED)
def test_another_size_is_named_with_the_difference(name: str) -> None:
    """Whatever all members must bring alike."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0", name, state="started", size=1000 if rank == 2 else 1024, ranks=SIZED[name])

    found = verdict(job(program))
    assert named(found) == {2: Reason.SIZE}
    difference = found.culprits[0].difference
    mine, most = difference.split(", most ")
    assert mine.startswith(f"{name} ")
    assert "Float[1000]" in mine
    assert "Float[1024]" in most


@pytest.mark.parametrize("name", ["all_to_all", "alltoall_base", "all_to_all_single"])
def test_sizes_that_may_differ_are_not_compared(name: str) -> None:
    """An exchange of uneven parts is nobody's fault."""
    found = verdict(job(lambda each, rank: each.call("0", name, state="started", size=100 + rank)))
    assert named(found) == {}
    assert found.remarks == (
        f"all 4 members have issued {name} 1 of group 0 (default_pg): no rank is missing, look at the network",
    )


@pytest.mark.parametrize("side", ["gather", "scatter"])
def test_only_the_root_has_the_other_side(side: str) -> None:
    """A root that has all parts differs from nobody."""
    dumps = job(lambda each, _: each.call("0", side, state="started"))
    for rank, dump in dumps.items():
        key = "output" if side == "gather" else "input"
        dump["entries"][-1][f"{key}_sizes"] = [[64]] * 4 if rank == 0 else []
    assert named(verdict(dumps)) == {}


def test_other_shapes_of_as_many_elements_do_not_differ() -> None:
    """A device counts elements."""
    dumps = job(lambda each, _: each.call("0", state="started"))
    for key in ("input_sizes", "output_sizes"):
        dumps[2]["entries"][-1][key] = [[8, 8]]
    assert named(verdict(dumps)) == {}


KEYS = ["record_id", "pg_id", "p2p_seq_id", "time_created_ns", "input_sizes", "input_dtypes", "output_sizes"]
KEYS += ["output_dtypes", "retired", "timeout_ms", "is_p2p"]


@pytest.mark.parametrize("key", [*KEYS, "pg_status", "pg_config", "version"])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_missing_key_loses_no_dump(key: str, *, everywhere: bool) -> None:
    """What else is there is enough to name the rank that is missing."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.call("0", state="started")

    dumps = job(program)
    for rank, dump in dumps.items():
        if everywhere or rank == 2:
            for each in [dump, *dump["entries"]]:
                each.pop(key, None)
    assert named(verdict(dumps)) == {2: Reason.OUTSIDE}


@pytest.mark.parametrize("key", ["input_dtypes", "input_sizes", "output_sizes"])
def test_a_size_that_one_dump_does_not_have_is_no_difference(key: str) -> None:
    """Nobody is blamed for what torch has not written."""
    dumps = job(lambda each, _: each.call("0", "barrier", state="started"))
    dumps[1]["entries"][-1].pop(key)
    dumps[1]["entries"][-1].pop(key.replace("input", "output"), None)
    assert named(verdict(dumps)) == {}


@pytest.mark.parametrize("bad", [7, None, {}, {"process_group": 1}, {"collective_seq_id": "x"}])
def test_entries_that_cannot_be_read_blame_nobody(bad: Any) -> None:
    """The rest of the dump counts, but not what it does not have."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.call("0", state="started")

    dumps = job(program)
    last = dumps[2]["entries"][-1]
    dumps[2]["entries"].append({**last, **bad} if isinstance(bad, dict) and bad else bad)
    found = verdict(dumps)
    assert (named(found), found.remarks) == ({}, ("rank 2 has a dump of which not all entries can be read",))


def test_a_recorder_without_entries_says_that_nothing_was_issued() -> None:
    """As JSON it leaves the key out: a rank before its first collective is named all the same."""
    dumps = job(lambda each, rank: each.call("0", state="started") if rank != 2 else None)
    assert "entries" not in dumps[2]
    found = verdict(dumps)
    assert named(found) == {2: Reason.OUTSIDE}
    assert found.culprits[0].newest == 0


def test_a_recorder_that_is_switched_off_blames_nobody() -> None:
    """Its counters say that there were collectives of which it has no entry."""
    dumps = job(lambda each, _: each.call("0", state="started"))
    del dumps[2]["entries"]
    dumps[2]["pg_status"]["0"]["last_enqueued_collective"] = "45264"
    found = verdict(dumps)
    assert (named(found), found.remarks) == (
        {},
        ("all 4 members have issued all_reduce 1 of group 0 (default_pg): no rank is missing, look at the network",),
    )


def active(dump: dict[str, Any]) -> dict[str, Any]:
    """What torch writes if asked for active calls alone."""
    return {**dump, "entries": [each for each in dump["entries"] if each["state"] != "completed"]}


def test_counters_name_a_rank_without_active_calls() -> None:
    """Its dump has no entry. The number of a group is its place among those of the rank, whatever torch calls it."""
    groups = {"0": ("default_pg", (0, 1, 2, 3)), "9": ("tp", (0, 1)), "10": ("tp", (2, 3))}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        mine = {name: group for name, group in groups.items() if rank in group[1]}
        recorder = Recorder(mine)
        recorder.call("0")
        for name in list(mine)[1:]:
            recorder.call(name)
            if rank != 2:
                recorder.call(name, state="scheduled")
        dumps[rank] = active(recorder.dump())
    assert dumps[2]["entries"] == []
    found = verdict(dumps)
    assert named(found) == {2: Reason.OUTSIDE}
    assert (found.culprits[0].wait.group.name, found.culprits[0].newest) == ("10", 1)


@pytest.mark.parametrize("keys", [["0", "9", "10"], ["4", "9"]])
def test_counters_that_fit_no_group_name_nobody(keys: list[str]) -> None:
    """As many numbers as groups, in another order than the entries say, or of names that have none."""
    groups = {"0": ("default_pg", (0, 1)), "mesh_tp": ("tp", (0, 1))}
    dumps = {rank: Recorder(groups) for rank in (0, 1)}
    for rank, recorder in dumps.items():
        recorder.call("mesh_tp")
        if rank == 0:
            recorder.call("mesh_tp", state="started")
    found = {rank: active(recorder.dump()) for rank, recorder in dumps.items()}
    found[1]["pg_status"] = {key: {"last_enqueued_collective": 1} for key in keys}
    assert named(verdict(found)) == {}


def test_a_part_of_a_batch_that_has_ended_is_not_waited_in() -> None:
    """Of active calls torch leaves out the end of a batch and keeps its parts: the peers of these have done theirs."""

    def program(recorder: Recorder, rank: int) -> None:
        for _ in range(3):
            recorder.batched(
                "0", ["send 0->1"] if rank == 0 else ["recv 1<-0", "send 1->2"] if rank == 1 else ["recv 2<-1"]
            )
        recorder.call("0")
        if rank != 1:
            recorder.call("0", state="scheduled")

    found = verdict({rank: active(dump) for rank, dump in job(program, 3).items()})
    assert not [wait for wait in found.waits if wait.transfer]
    assert named(found) == {1: Reason.OUTSIDE}


def test_counters_say_how_far_a_rank_has_come() -> None:
    """What was issued and fell out of the ring was issued."""
    dumps = job(lambda each, _: each.call("0", state="started"))
    dumps[1]["pg_status"]["0"]["last_enqueued_collective"] = "9"
    dump = parse(json.dumps(dumps[1]).encode(), 1)
    assert list(dump.newest.values()) == [9]
    assert facts(dump).groups[0].issued == 9


@pytest.mark.parametrize(("backend", "pending"), [("nccl2", 4), ("gloo", 2)])
def test_what_precedes_a_done_call_of_a_communicator_is_done(backend: str, pending: int) -> None:
    """Some recorders learn of no end of calls that end together, and leave them open; gloo keeps no order."""
    recorder = Recorder(WORLD, backend=backend)
    for state in ("completed", "scheduled", "completed", "scheduled"):
        recorder.call("0", state=state)
    dump = parse(json.dumps(recorder.dump()).encode(), 0)
    assert [each.sequence for each in dump.pending] == [pending]


def test_recorders_of_one_process_are_read_apart() -> None:
    """One has no entries; two that both record a call do not make two calls of it."""
    waiting, empty = Recorder(WORLD), Recorder(WORLD)
    waiting.call("0", state="started")
    for parts in ([empty.dump(), waiting.dump()], [waiting.dump(), waiting.dump()], [{}, 7, waiting.dump()]):
        dump = parse(json.dumps({"dumps": parts}).encode(), 0)
        assert [(each.sequence, each.name) for each in dump.pending] == [(1, "all_reduce")]
        assert not dump.truncated
    with pytest.raises(DumpError, match="no dump of a flight recorder"):
        parse(b'{"dumps": [{}, 7]}', 0)


def test_one_remark_says_what_all_have_issued() -> None:
    """Not one for each group, and none beside a culprit."""
    groups = {str(number): (f"g{number}", (0, 1, 2, 3)) for number in range(1, 23)}
    recorder = Recorder({**groups, **WORLD})
    for group in groups:
        recorder.call(group, state="started")
    dumps = dict.fromkeys(range(4), recorder.dump())
    assert verdict(dumps).remarks == (
        (
            "all 4 members have issued all_reduce 1 of group 1 (g1), and of 21 more collectives: "
            "no rank is missing, look at the network"
        ),
    )
    recorder.call("0", state="started")
    missing = {**recorder.dump(), "entries": recorder.entries[:-1], "pg_status": {}}
    found = verdict({**dict.fromkeys(range(3), recorder.dump()), 3: missing})
    assert [remark for remark in found.remarks if "network" in remark] == []


@settings(max_examples=100, deadline=None)
@given(st.integers(3, 12), st.integers(0, 11), st.integers(1, 60), st.integers(1, 10**6))
def test_a_dump_of_an_earlier_attempt_is_never_the_culprit(ranks: int, old: int, calls: int, seconds: int) -> None:
    """It stopped earlier, by number and by time: nothing is known of this attempt there."""
    old %= ranks
    members = {"0": ("default_pg", tuple(range(ranks)))}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(ranks):
        recorder = Recorder(members, start=0 if rank == old else (seconds + calls + 2) * SECOND)
        for _ in range(calls + (rank != old)):
            recorder.call("0")
        if rank != old:
            recorder.call("0", state="started")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    assert named(found) == {}
    remark = f"the dump of rank {old} is of an earlier attempt, so nothing is known there of this one"
    assert found.remarks[0] == remark


def test_two_members_at_different_collectives_blame_who_is_behind() -> None:
    """Nobody has done the second one, so that it is open proves nothing."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0", state="completed" if rank else "scheduled")
        recorder.call("0", state="scheduled")

    assert named(verdict(job(program, 2))) == {0: Reason.ALONE}


def test_a_group_that_numbers_its_members_otherwise_says_nothing_of_ranks() -> None:
    """Replicas of a fault-tolerant job have their own numbers in groups across the job."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in (4, 5):
        recorder = Recorder({"0": ("torchft_quorum_3", (0, 1))})
        recorder.call("0", state="started")
        dumps[rank] = recorder.dump()
    assert named(verdict(dumps)) == {}


def pipeline(form: str, stops: int, place: int) -> dict[int, dict[str, Any]]:
    """Dumps of four stages of which one stops before a transfer of the third micro-batch: `recv` or `send`."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(WORLD)
        calls = [f"recv {rank}<-{rank - 1}"] * (rank > 0) + [f"send {rank}->{rank + 1}"] * (rank < 3)
        for name in calls * 2:
            recorder.transfer("0", name, batched=form == "batched")
        # What is upstream waits to send its next one; what is downstream waits to receive.
        open_call = calls[-1] if rank < stops else calls[0]
        if rank == stops:
            for name in calls[:place]:
                recorder.transfer("0", name, batched=form == "batched")
        elif rank == stops - 1 and place:
            recorder.transfer("0", open_call, batched=form == "batched")
            recorder.call("0", state="scheduled")
        else:
            recorder.transfer("0", open_call, batched=form == "batched", state="scheduled")
        dumps[rank] = recorder.dump(keep=4)
    return dumps


@pytest.mark.parametrize("form", ["plain", "batched"])
@pytest.mark.parametrize(("stops", "place"), [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)])
def test_a_stage_that_does_not_post_its_side_is_named(form: str, stops: int, place: int) -> None:
    """Its neighbours wait for it in a send or a receive, and the stages behind them for these."""
    found = verdict(pipeline(form, stops, place))
    assert named(found) == {stops: Reason.OUTSIDE}
    assert found.remarks == ()


def test_a_send_and_its_receive_are_told_with_the_ranks_of_the_job() -> None:
    """A recorder names members of a group by their places in it."""
    groups = {"0": ("default_pg", (0, 1, 2, 3)), "7": ("pp", (1, 3))}
    waiting, idle = Recorder(groups), Recorder(groups)
    waiting.transfer("7", "recv 1<-0", state="scheduled")
    found = verdict({3: waiting.dump(), 1: idle.dump()}, 4)
    assert named(found) == {1: Reason.OUTSIDE}
    assert (str(found.culprits[0].wait), found.culprits[0].newest) == ("recv 3<-1 of group 7 (pp)", None)


def test_both_sides_of_a_transfer_blame_nobody() -> None:
    """The transfer itself does not end."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank, name in enumerate(["send 0->1", "recv 1<-0"]):
        recorder = Recorder({"0": ("default_pg", (0, 1))})
        recorder.transfer("0", name, state="started")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    assert named(found) == {}
    assert found.remarks == (
        "both sides have issued recv 1<-0 of group 0 (default_pg): no rank is missing, look at the network",
    )


def test_sides_of_a_transfer_that_differ_in_size_are_told() -> None:
    """Neither is wrong by itself, so nobody is named."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank, name in enumerate(["send 0->1", "recv 1<-0"]):
        recorder = Recorder({"0": ("default_pg", (0, 1))})
        recorder.transfer("0", name, state="started")
        dumps[rank] = recorder.dump()
    dumps[1]["entries"][-1]["input_sizes"] = [[9]]
    found = verdict(dumps)
    assert (named(found), found.remarks) == (
        {},
        (
            (
                "recv 1<-0 of group 0 (default_pg) is of Float[9], and send 0->1 of Float[8]: "
                "the sides of a transfer must agree"
            ),
        ),
    )


def test_what_was_given_up_is_not_done() -> None:
    """After an abort torch retires what had not ended; or the abort itself ends it, later than its timeout."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.call("0", state="started")

    for change in (
        {"retired": True},
        {"retired": True, "state": "completed", "time_discovered_completed_ns": 1_700_000_700 * SECOND},
    ):
        dumps = job(program)
        for rank, dump in dumps.items():
            if rank != 2:
                dump["entries"][-1] |= change
        assert named(verdict(dumps)) == {2: Reason.OUTSIDE}


def test_what_is_over_before_all_have_issued_it_is_told() -> None:
    """Gloo retires what it gives up, and does not say how it ended."""

    def program(recorder: Recorder, rank: int) -> None:
        for _ in range(2 if rank == 1 else 3):
            recorder.call("0")

    found = verdict(job(program, 3))
    assert (named(found), found.remarks) == (
        {},
        (
            (
                "collective 3 of group 0 (default_pg) is over on some members, and rank 1 has not issued it: "
                "it was aborted, or the dumps are of different moments"
            ),
        ),
    )


def test_a_dump_that_was_written_before_others_went_on_blames_nobody() -> None:
    """Nobody ends a collective that a member has not issued: that member has issued it since."""

    def program(recorder: Recorder, rank: int) -> None:
        for _ in range(2 if rank == 1 else 4):
            recorder.call("0")
        if rank == 3:
            recorder.call("0", state="started")

    found = verdict(job(program))
    assert named(found) == {0: Reason.OUTSIDE, 2: Reason.OUTSIDE}
    assert found.remarks == ("rank 1 wrote its dump before others ended collectives of group 0 (default_pg)",)


def gloo_job(*, calling: dict[int, bool] | None = None) -> Verdict:
    """Judge three ranks of gloo, of which 0 and 1 have sent to each other before each all-reduce but the first.

    Rank 1 never sends the third one, which rank 0 waits for, as rank 2 does for both in an all-reduce.
    """
    dumps: dict[int, Any] = {}
    for rank in range(3):
        recorder = Recorder({"0": ("default_pg", (0, 1, 2))}, backend="gloo")
        for _ in range(2 if rank < 2 else 3):
            recorder.call("0", state="scheduled")
        found = recorder.dump()
        for place, entry in enumerate(found["entries"]):
            # Gloo counts sends and receives among its operations, and says so in the counters of a group.
            entry |= {"op_id": 1 + 2 * place if rank < 2 else 1 + place, "retired": rank < 2 or place < 2}
        found["pg_status"]["0"]["last_enqueued_collective"] = str(found["entries"][-1]["op_id"])
        found["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
        dumps[rank] = parse(json.dumps(found).encode(), rank)
    return judge({rank: replace(dump, calling=(calling or {}).get(rank)) for rank, dump in dumps.items()}, 3)


def test_sends_of_gloo_are_counted_and_not_shown() -> None:
    """A rank may be in one where such calls were made; where somebody says that it is in none, it is named."""
    found = gloo_job()
    assert (named(found), found.remarks) == (
        {},
        ("ranks 0-1 may be in a send or receive of gloo, which its recorder does not show",),
    )
    found = gloo_job(calling={0: True, 1: False, 2: True})
    assert named(found) == {1: Reason.OUTSIDE}
    assert found.culprits[0].newest == 2
    assert found.remarks == ("rank 0 is in a call of torch.distributed that its recorder does not show",)


def test_who_is_late_and_neither_waits_nor_is_idle_is_told_with_the_reason() -> None:
    """In a transfer of which both sides are issued, or in a collective of which all are: one line each."""
    groups = {"0": ("default_pg", tuple(range(5))), "7": ("pair", (2, 3))}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(5):
        recorder = Recorder(groups)
        if rank < 2:
            recorder.transfer("0", "recv 1<-0" if rank else "send 0->1", state="scheduled")
        elif rank < 4:
            recorder.call("7", state="started")
        else:
            recorder.call("0", state="started")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    assert (named(found), found.remarks) == (
        {},
        (
            "ranks 0-1 are in a send or receive that both sides have issued",
            "ranks 2-3 are in a collective of which no member is known to be missing",
        ),
    )


@pytest.mark.parametrize("skipped", [False, True])
def test_of_devices_that_hang_it_is_said_what_would_tell(skipped: bool) -> None:  # noqa: FBT001 - of pytest
    """As dumped by four ranks on a real GPU: the device of one hangs, or it left a call out, and its pair waits for it.

    Torch records no start of a device unless it is told to.
    """
    groups = {"0": ("default_pg", (0, 1, 2, 3)), "1": ("", (0, 1)), "2": ("", (2, 3))}
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(groups)
        if rank < 2:
            recorder.call("0", state="scheduled")
            recorder.call("1", state="scheduled")
        else:
            if skipped and rank == 3:
                recorder.call("0", state="scheduled")
            recorder.call("2", state="scheduled")
        dumps[rank] = recorder.dump()
    found = verdict(dumps)
    said = (
        "in a collective of which no member is known to be missing; no device is known to have begun, which "
        "TORCH_NCCL_ENABLE_TIMING=1 records"
    )
    assert (named(found), found.remarks) == ({}, (f"{'rank 2 is' if skipped else 'ranks 2-3 are'} {said}",))


def test_of_a_subgroup_of_gloo_only_those_are_known_that_have_used_it() -> None:
    """So nobody says that no rank is missing."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(3):
        recorder = Recorder({"0": ("default_pg", (0, 1, 2)), "1": ("undefined", (0, 1, 2))}, backend="gloo")
        if rank < 2:
            recorder.call("1", state="scheduled")
        dumps[rank] = {**recorder.dump(), "pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}}
    found = verdict(dumps)
    assert (named(found), found.remarks) == (
        {},
        ("ranks 0-1 have issued all_reduce 1 of group 1: who else is in the group is not known",),
    )
