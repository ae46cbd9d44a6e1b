"""Counters beside the entries: how far a rank has come, where its entries do not say it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from laggard_exporter.hang.dump_file import DumpError, parse
from laggard_exporter.hang.facts import facts
from laggard_exporter.hang.verdict import Reason, Verdict, judge
from tests.exporter.hang.recorder import Recorder, active, job, named, verdict


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


def test_counters_say_how_far_a_rank_has_come() -> None:
    """What was issued and fell out of the ring was issued."""
    dumps = job(lambda each, _: each.call("0", state="started"))
    dumps[1]["pg_status"]["0"]["last_enqueued_collective"] = "9"
    dump = parse(json.dumps(dumps[1]).encode(), 1)
    assert list(dump.newest.values()) == [9]
    assert facts(dump).groups[0].issued == 9


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
        ("ranks 0-1 may be in a send or receive of gloo, which their recorders do not show",),
    )
    found = gloo_job(calling={0: True, 1: False, 2: True})
    assert named(found) == {1: Reason.OUTSIDE}
    assert found.culprits[0].newest == 2
    assert found.remarks == ("rank 0 is in a call of torch.distributed that its recorder does not show",)


def of_torchcomms(communicators: list[str], *, brackets: bool = True) -> dict[int, dict[str, Any]]:
    """Dumps of torchcomms of four ranks, of which three wait for rank 2 in a call of the first communicator."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(dict.fromkeys(communicators, ("ncclx", (0, 1, 2, 3))), backend="ncclx")
        for each in communicators[1:]:
            recorder.call(each)
        if rank != 2:
            recorder.call(communicators[0], state="started")
        dump = {**recorder.dump(), "pg_status": {}}
        for place, entry in enumerate(recorder.entries):
            entry |= {"collective_seq_id": place, "op_id": place, "p2p_seq_id": 0}
        if not brackets:
            dump["pg_config"]["world"]["ranks"] = "0,1,2,3"
        dumps[rank] = dump
    return dumps


@pytest.mark.parametrize("brackets", [True, False])
def test_torchcomms_counts_from_0(*, brackets: bool) -> None:
    """The first call of all has the number 0, which a rank that has issued nothing has not reached."""
    assert named(verdict(of_torchcomms(["world"], brackets=brackets))) == {2: Reason.OUTSIDE}


def test_torchcomms_with_several_communicators_is_refused_with_the_reason() -> None:
    """Its one counter numbers the calls of all of them, of which ranks make different ones."""
    with pytest.raises(DumpError, match="torchcomms counts the calls of all communicators together"):
        verdict(of_torchcomms(["world", "tp"]))
