"""Calls that are open: coalesced and batched ones, sizes, and which of them a rank is in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laggard_exporter.hang.dump_file import parse
from laggard_exporter.hang.verdict import Reason
from tests.exporter.hang.recorder import WORLD, Recorder, active, job, named, verdict


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


@pytest.mark.parametrize(("backend", "pending"), [("nccl2", 4), ("gloo", 2)])
def test_what_precedes_a_done_call_of_a_communicator_is_done(backend: str, pending: int) -> None:
    """Some recorders learn of no end of calls that end together, and leave them open; gloo keeps no order."""
    recorder = Recorder(WORLD, backend=backend)
    for state in ("completed", "scheduled", "completed", "scheduled"):
        recorder.call("0", state=state)
    dump = parse(json.dumps(recorder.dump()).encode(), 0)
    assert [each.sequence for each in dump.pending] == [pending]


def test_two_members_at_different_collectives_blame_who_is_behind() -> None:
    """Nobody has done the second one, so that it is open proves nothing."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0", state="completed" if rank else "scheduled")
        recorder.call("0", state="scheduled")

    assert named(verdict(job(program, 2))) == {0: Reason.ALONE}


def hooked(recorder: Recorder) -> dict[str, Any]:
    """What hooks of torch 2.15 record of the calls of nccl2: counters of all calls, from 0 on."""
    dump = recorder.dump()
    for number, entry in enumerate(dump["entries"]):
        entry["op_id"] = number
    dump["pg_status"] = {"0": {"last_enqueued_collective": len(dump["entries"]) - 1}}
    return dump


def test_counters_of_a_hooked_recorder_count_no_collectives() -> None:
    """They count calls under graph captures too, which are not recorded: a rank that is behind is no less behind."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(WORLD, backend="nccl2")
        recorder.call("0")
        if rank != 2:
            recorder.call("0", state="scheduled")
        dumps[rank] = hooked(recorder)
        dumps[rank]["pg_status"]["0"]["last_enqueued_collective"] = 8
    assert named(verdict(dumps)) == {2: Reason.OUTSIDE}


@pytest.mark.parametrize(("after", "named_there"), [(0, {}), (1, {1: Reason.OUTSIDE})])
def test_a_batch_that_hooks_take_for_done_may_be_what_a_rank_waits_in(
    after: int, named_there: dict[int, Reason]
) -> None:
    """Sends and receives of a batch are completed there once they are issued, and no end of it is recorded."""
    dumps: dict[int, dict[str, Any]] = {}
    for rank in range(4):
        recorder = Recorder(WORLD, backend="nccl2")
        for name in ["recv 1<-0", "send 1->2"] if rank == 1 else []:
            recorder.transfer("0", name)
        for _ in range(after):
            recorder.call("0")
        if rank != 1:
            recorder.call("0", state="scheduled")
        dumps[rank] = hooked(recorder)
    assert named(verdict(dumps)) == named_there


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "differs"),
    [
        ("all_gather", [[[4]], [[4]], [[4]], [[9]]], [[[4], [4], [4], [9]]] * 4, False),
        ("all_gather", [[[4]]] * 4, [[[4]] * 4, [[4]] * 4, [[4]] * 4, [[5]] * 4], True),
        ("reduce_scatter", [[[4], [4], [4], [9]]] * 4, [[[4]], [[4]], [[4]], [[9]]], False),
        ("gather_single", [[[4]]] * 4, [[[0]], [[0]], [[0]], [[16]]], False),
        ("all_to_all_v_single", [[[4]], [[4]], [[4]], [[9]]], [[[4]]] * 4, False),
    ],
)
def test_members_may_have_parts_of_their_own_size(
    name: str, inputs: list[list[list[int]]], outputs: list[list[list[int]]], *, differs: bool
) -> None:
    """Who gathers from lists says on its output what each member brings, and only a root has an output."""
    dumps = job(lambda each, _: each.call("0", name, state="started"))
    for rank, dump in dumps.items():
        entry = dump["entries"][-1]
        entry |= {"input_sizes": inputs[rank], "output_sizes": outputs[rank]}
        entry |= {f"{side}_dtypes": ["Float"] * len(entry[f"{side}_sizes"]) for side in ("input", "output")}
    assert named(verdict(dumps)) == ({3: Reason.SIZE} if differs else {})


@pytest.mark.parametrize(
    ("odd", "most"),
    [
        ([100, 101], [100, 101, 102]),
        ([100, 101, 90], [100, 101, 102]),
        (list(range(1, 60)), list(range(1, 61))),
    ],
    ids=["one part fewer", "another size", "many parts"],
)
def test_who_coalesces_something_else_is_named(odd: list[int], most: list[int]) -> None:
    """The end that torch records for a coalesced call has no sizes: its parts have them."""
    dumps = job(lambda each, rank: each.coalesced("0", odd if rank == 2 else most, end="started"))
    found = verdict(dumps)
    assert named(found) == {2: Reason.SIZE}
    mine, usual = found.culprits[0].difference.split(", most ")
    assert mine.startswith("ALLGATHER_coalesced of ")
    assert usual.startswith("ALLGATHER_coalesced of ")
    # Parts that a ring has lost are no difference.
    dumps[2]["entries"] = dumps[2]["entries"][-2:]
    assert named(verdict(dumps)) == {}


def test_sizes_are_compared_where_a_dump_has_no_types() -> None:
    """As torch 2.4 records; beside a dump that has types nobody differs."""
    dumps = job(lambda each, rank: each.call("0", state="started", size=60 if rank == 2 else 64))
    for dump in dumps.values():
        for entry in dump["entries"]:
            del entry["input_dtypes"], entry["output_dtypes"]
    found = verdict(dumps)
    assert named(found) == {2: Reason.SIZE}
    difference = "all_reduce input elements [60], output elements [60]"
    assert found.culprits[0].difference == f"{difference}, most {difference.replace('60', '64')}"


def test_a_call_without_a_state_is_over_where_it_is_retired() -> None:
    """A missing state does not say that the call was given up."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 1:
            recorder.call("0", state="started")

    dumps = job(program)
    for entry in dumps[0]["entries"]:
        del entry["state"]
    assert named(verdict(dumps)) == {1: Reason.OUTSIDE}


@pytest.mark.parametrize("done", [(), (1, 3), (0, 1, 3)])
def test_who_calls_something_else_is_named_where_others_are_done_with_theirs(done: tuple[int, ...]) -> None:
    """A broadcast ends on its root and on whom it has reached; who has left it out calls the next collective."""

    def program(recorder: Recorder, rank: int) -> None:
        recorder.call("0")
        if rank != 2:
            recorder.call("0", "broadcast", state="completed" if rank in done else "started")
        recorder.call("0", "all_reduce", state="started")

    assert named(verdict(job(program))) == {2: Reason.MISMATCH}
