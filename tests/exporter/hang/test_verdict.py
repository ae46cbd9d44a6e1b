"""Who does not join a collective: the right ranks on jobs of any size, nobody where the evidence does not decide."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard_exporter.hang.dump_file import DumpError, parse
from laggard_exporter.hang.verdict import Reason, Verdict, judge, ranks_as_text, spans
from tests.support.recorded_job import RecordedJob, mesh

Edit = Callable[[int, dict[str, Any]], None]


def verdict(job: RecordedJob, *, without: tuple[int, ...] = (), edit: Edit | None = None) -> Verdict:
    """Judge a job by the dumps of its ranks, each read as JSON or as a pickle."""
    dumps = {}
    for rank in range(job.ranks):
        if rank not in without:
            dump = job.dump(rank)
            if edit is not None:
                edit(rank, dump)
            content = pickle.dumps(dump, 2) if rank % 2 else json.dumps(dump).encode()
            dumps[rank] = parse(content, rank)
    return judge(dumps)


def named(found: Verdict) -> dict[int, Reason]:
    """The culprits with their reasons."""
    return {culprit.rank: culprit.reason for culprit in found.culprits}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("ranks", "tensor"), [(2, 1), (2, 2), (8, 2), (64, 8), (256, 4)])
def test_the_culprits_of_a_mesh_are_named_and_nobody_else(ranks: int, tensor: int, seed: int) -> None:
    """One to three ranks stop anywhere; their groups wait, and all others in turn; only who stopped is named."""
    chance = random.Random(f"{ranks} {tensor} {seed}")
    groups, program = mesh(ranks, tensor, steps=6)
    stopping = chance.sample(range(ranks), min(ranks - 1, 1 + seed % 3))
    stops = {rank: chance.randrange(2, 20) for rank in stopping}
    job = RecordedJob(groups, program, stops, ahead=1 + seed % 4)
    found = verdict(job)
    assert job.culprits()
    assert named(found) == dict.fromkeys(job.culprits(), Reason.OUTSIDE)


def test_a_verdict_is_told_in_words() -> None:
    """Each reason ends the sentence "rank 3 ..."; where nothing is known, no rank and no dump is counted."""
    assert {reason.name: reason.value for reason in Reason} == {
        "OUTSIDE": "is in no collective",
        "ALONE": "has not done what all others have done",
        "NOT_STARTED": "has issued it, its device has not begun",
        "MISMATCH": "calls another collective than most",
        "SIZE": "brings another size than most",
        "NO_DUMP": "left no dump",
        "GONE": "has ended",
    }
    assert judge({}) == Verdict(remarks=("no collective is waited in",), ranks=0, dumps=0)
    assert Verdict() == Verdict((), (), (), 0, 0)


def test_whom_most_wait_for_comes_first() -> None:
    """Of two culprits in groups of their own, and of their collectives."""
    groups = {"1": (0, 1), "2": (2, 3, 4, 5)}
    program = [("1", "all_reduce"), ("2", "all_gather")] * 2
    found = verdict(RecordedJob(groups, program, stops={0: 0, 5: 0}))
    assert [(culprit.rank, culprit.wait.waiting, culprit.newest) for culprit in found.culprits] == [
        (5, (2, 3, 4), 0),
        (0, (1,), 0),
    ]
    assert [(wait.waiting, wait.missing, wait.sequence, wait.operations) for wait in found.waits] == [
        ((2, 3, 4), (5,), 1, {"all_gather": 3}),
        ((1,), (0,), 1, {"all_reduce": 1}),
    ]
    assert (found.ranks, found.dumps) == (6, 6)


def test_ranks_are_told_as_text() -> None:
    """Neighbours as a span, with the word in the right number."""
    assert spans([7, 0, 1, 2, 3]) == "0-3, 7"
    assert spans(range(0, 160, 8)) == "0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120 and 4 more"
    assert [ranks_as_text(ranks) for ranks in ([7], [7, 7], [2, 1])] == ["rank 7", "rank 7", "ranks 1-2"]


def test_a_job_that_goes_on_or_has_ended_has_no_culprit() -> None:
    """Everything that was issued is done: nobody is to blame, and it says so."""
    found = verdict(RecordedJob(*mesh(8, 2, steps=3)))
    assert named(found) == {}
    assert found.remarks == ("no collective is waited in",)


def test_a_rank_without_a_dump_is_named_where_all_others_wait_for_it() -> None:
    """What was killed leaves none; but where more dumps are not there, that proves nothing."""
    job = RecordedJob(*mesh(8, 2, steps=3), stops={5: 7})
    assert named(verdict(job, without=(5,))) == {5: Reason.NO_DUMP}
    found = verdict(job, without=(1, 3, 5, 7))
    assert named(found) == {}
    assert found.remarks[0] == "not told apart: ranks 1, 3, 5, 7 left no dump"


def test_a_rank_that_calls_another_collective_is_named() -> None:
    """Same number, another operation: the few are named; of two equal halves none is."""
    calls = [("0", "all_reduce")] * 3
    other = [*calls[:2], ("0", "barrier")]

    def edit(_rank: int, dump: dict[str, Any]) -> None:
        dump["entries"][-1] |= {"state": "started", "retired": False}

    groups = {"0": tuple(range(4))}
    assert named(verdict(RecordedJob(groups, calls, programs={2: other}), edit=edit)) == {2: Reason.MISMATCH}
    found = verdict(RecordedJob(groups, calls, programs={2: other, 3: other}), edit=edit)
    assert named(found) == {}
    (remark,) = found.remarks
    assert remark == (
        "in all_reduce / barrier 3 of group 0 (default_pg) ranks 0-1 (all_reduce input Float[1024]) and "
        "ranks 2-3 (barrier input Float[1024]) call different things; no side is most"
    )


def test_a_rank_that_brings_another_amount_is_named() -> None:
    """An all-reduce of other sizes than everybody's never ends."""

    def edit(rank: int, dump: dict[str, Any]) -> None:
        dump["entries"][-1] |= {"state": "started", "retired": False}
        if rank == 1:
            dump["entries"][-1]["input_sizes"] = [[7]]

    job = RecordedJob({"0": (0, 1, 2)}, [("0", "all_reduce")] * 3)
    found = verdict(job, edit=edit)
    assert named(found) == {1: Reason.SIZE}
    assert found.culprits[0].difference == "all_reduce input Float[7], most all_reduce input Float[1024]"


def test_a_device_that_has_not_begun_is_named() -> None:
    """All have issued the collective, and it runs on all devices but one, which is busy with something before it."""

    def edit(rank: int, dump: dict[str, Any]) -> None:
        dump["entries"][-1] |= {"state": "scheduled" if rank == 6 else "started", "retired": False}

    job = RecordedJob({"0": tuple(range(8))}, [("0", "all_reduce")] * 3)
    assert named(verdict(job, edit=edit)) == {6: Reason.NOT_STARTED}


def test_a_device_that_waits_in_another_group_is_not_named() -> None:
    """Of two that have not begun what the others work on, one waits for the other in their pair: which is named."""

    def edit(rank: int, dump: dict[str, Any]) -> None:
        late = rank in (4, 5)
        dump["entries"][-1] |= {"state": "scheduled" if late else "started", "retired": False}
        if late:
            dump["entries"][-2] |= {"state": "started" if rank == 4 else "scheduled", "retired": False}

    job = RecordedJob(
        {"0": tuple(range(8)), "7": (4, 5)}, [("0", "all_reduce"), ("7", "all_reduce"), ("0", "all_reduce")]
    )
    assert named(verdict(job, edit=edit)) == {5: Reason.NOT_STARTED}


def test_a_rank_that_is_stuck_alone_is_named() -> None:
    """All others have gone through, and wait for it in the next one."""

    def edit(rank: int, dump: dict[str, Any]) -> None:
        if rank == 3:
            dump["entries"][-1] |= {"state": "started", "retired": False}

    job = RecordedJob({"0": tuple(range(4))}, [("0", "all_reduce")] * 4, stops={3: 3})
    found = verdict(job, edit=edit)
    assert named(found) == {3: Reason.ALONE}
    assert found.remarks == ()


@pytest.mark.parametrize(
    ("ranks", "stuck", "expected"), [(5, (0, 1), (0, 1)), (4, (0, 1), ()), (2, (1,), (1,)), (1, (0,), ())]
)
def test_who_is_stuck_is_named_where_most_have_gone_through(
    ranks: int, stuck: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Two of five are; of two halves none is, but one of two; and a rank that is a group by itself waits for nobody."""

    def edit(rank: int, dump: dict[str, Any]) -> None:
        if rank in stuck:
            dump["entries"][-1] |= {"state": "started", "retired": False}

    found = verdict(RecordedJob({"0": tuple(range(ranks))}, [("0", "all_reduce")] * 3), edit=edit)
    assert named(found) == dict.fromkeys(expected, Reason.ALONE)


@pytest.mark.parametrize(("late", "expected"), [((6, 7), (6, 7)), ((4, 5, 6, 7), ()), ((3, 4, 5, 6, 7), ())])
def test_devices_that_have_not_begun_are_named_where_they_are_few(
    late: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Of halves none is, and where most have not begun it is not them."""

    def edit(rank: int, dump: dict[str, Any]) -> None:
        dump["entries"][-1] |= {"state": "scheduled" if rank in late else "started", "retired": False}

    found = verdict(RecordedJob({"0": tuple(range(8))}, [("0", "all_reduce")] * 3), edit=edit)
    assert named(found) == dict.fromkeys(expected, Reason.NOT_STARTED)
    assert ("all 8 members have issued" in " ".join(found.remarks)) == (not expected)


def test_dumps_are_judged_as_those_of_as_many_ranks_as_the_job_has() -> None:
    """Without the number, what the dumps speak of is all there is."""
    dump = RecordedJob({"0": (0, 1)}, [("0", "all_reduce")]).dump(0)
    one = {0: parse(json.dumps(dump).encode(), 0)}
    assert (judge(one).ranks, judge(one, 4).ranks, judge(one, 4).dumps) == (2, 4, 1)


def test_where_all_have_arrived_no_rank_is_named() -> None:
    """The collective itself does not end: that is the network's or the devices' doing."""

    def edit(_rank: int, dump: dict[str, Any]) -> None:
        dump["entries"][-1] |= {"state": "started", "retired": False}

    found = verdict(RecordedJob({"0": tuple(range(4))}, [("0", "all_reduce")] * 3), edit=edit)
    assert named(found) == {}
    assert found.remarks == (
        "all 4 members have issued all_reduce 3 of group 0 (default_pg): no rank is missing, look at the network",
    )


def test_ranks_that_wait_for_each_other_are_told_and_not_blamed() -> None:
    """Two groups called in different order: each waits for the other, and neither is in the wrong more."""
    groups = {"0": (0, 1), "1": (0, 1)}
    calls = [("0", "all_reduce"), ("1", "all_reduce")]
    found = verdict(RecordedJob(groups, calls, programs={1: calls[::-1]}))
    assert named(found) == {}
    assert found.remarks == (
        "ranks 0-1 wait for each other in different collectives: they call them in different order",
    )


def test_a_rank_in_a_send_or_receive_is_not_blamed() -> None:
    """A stage of a pipeline that waits for its neighbour is late for a collective, and innocent of it."""

    def edit(rank: int, dump: dict[str, Any]) -> None:
        if rank == 1:
            transfer = copy.deepcopy(dump["entries"][-1])
            transfer |= {"is_p2p": True, "state": "started", "retired": False, "profiling_name": "nccl:recv 1<-?"}
            dump["entries"].append(transfer)

    found = verdict(RecordedJob({"0": tuple(range(4))}, [("0", "all_reduce")] * 4, stops={1: 2}), edit=edit)
    assert named(found) == {}
    assert found.remarks == ("rank 1 is in a send or receive of an unknown peer",)


def test_a_dump_that_is_too_short_blames_nobody() -> None:
    """Where a rank's entries of a group have made room for others, that they are not there proves nothing."""

    def edit(rank: int, dump: dict[str, Any]) -> None:
        if rank == 1:
            dump["entries"] = [
                {**each, "record_id": 900} for each in dump["entries"] if each["process_group"][0] == "2"
            ]

    groups = {"0": (0, 1, 2), "2": (1, 2)}
    program = [("0", "all_reduce"), ("2", "all_reduce"), ("0", "all_reduce")]
    found = verdict(RecordedJob(groups, program, stops={1: 2}), edit=edit)
    assert named(found) == {}
    assert found.remarks == ("rank 1 has no entry of group 0 (default_pg) left: its dump is too short",)


class _Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("this runs when it is unpickled",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x80", r"neither JSON nor a pickle that can be read \(\w+\)"),
        (b"not a dump", r"neither JSON nor a pickle that can be read \(JSONDecodeError\)"),
        (b"[" * 200_000, "it needs more memory than a dump does"),
        (b"[]", "no dump of a flight recorder"),
        (b'{"entries": [1]}', "no dump of a flight recorder"),
        (pickle.dumps(_Harmful()), "the pickle names builtins.print, a dump has only text, numbers and containers"),
        (pickle.dumps({"entries": [_Harmful()]}, 2), "the pickle names __builtin__.print"),
    ],
)
def test_what_is_no_dump_is_refused_before_it_does_anything(
    content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence says why; nothing that a pickle asks for is called."""
    with pytest.raises(DumpError, match=message):
        parse(content, 0)
    assert capsys.readouterr() == ("", "")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_dumps_are_refused_or_read_and_raise_nothing_else(data: st.DataObject) -> None:
    """Bytes changed anywhere in a real dump, of either kind."""
    dump = RecordedJob(*mesh(4, 2, steps=1), stops={1: 1}).dump(0)
    content = bytearray(data.draw(st.sampled_from([json.dumps(dump).encode(), pickle.dumps(dump, 2)])))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    # A pickle may ask for a memo of gigabytes by one number; the command line reads in a process with a limit.
    if content[:1] == b"\x80" and b"r" in content:
        content = bytearray(content.replace(b"r", b"q"))
    with contextlib.suppress(DumpError):
        judge({0: parse(bytes(content), 0)})
