"""What an answer of NCCL's RAS service says of ranks, and what it does not: no innocent is behind."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from laggard_exporter.ras.answer import Answer, RasError, parse
from laggard_exporter.ras.facts import Behind, Facts, Missing, agreed, facts, known_places
from tests.support import fake_ras
from tests.support.fake_ras import communicator, member, missing, process, world

HASH = "0xb7e7187447156001:0xb8242ed28a71381e"


def told(*communicators: Mapping[str, Any], ranks: int, known: Mapping[int, int] | None = None) -> Facts:
    """Return the facts of an answer of a job of a size. ``known`` are processes of this host and their ranks."""
    answer = parse(fake_ras.answer(*communicators))
    pids = {process(rank)["pid"]: rank for rank in range(8)} if known is None else known
    return facts(answer, ranks, known_places(answer, pids, lambda host: host == fake_ras.HOST))


def test_a_rank_that_has_issued_less_than_another_is_behind() -> None:
    """With what it has issued, and the most that any member has, on another host too."""
    counts = [812] * 16
    counts[3] = counts[12] = 811
    assert told(world(counts), ranks=16) == Facts(
        (Behind(3, f"0xf00d {HASH}", 811, 812), Behind(12, f"0xf00d {HASH}", 811, 812))
    )


def test_equal_counts_prove_nothing() -> None:
    """All may hang in the collective that all have issued."""
    assert told(world([812] * 16), ranks=16) == Facts()


def test_who_is_ahead_elsewhere_is_not_behind() -> None:
    """Rank 1 is late in the group of all since it waits for rank 0 in a pair; rank 0 alone waits for nobody."""
    pair = communicator(0xBEEF, [member(0, 0, 40), member(1, 1, 41)])
    found = told(world([9, 9, 10, 10]), pair, ranks=4)
    assert [each.rank for each in found.behind] == [0]


def test_of_several_communicators_the_one_with_the_largest_lag_is_told() -> None:
    """One series a rank."""
    pair = communicator(0xBEEF, [member(0, 0, 1), member(1, 1, 4)])
    assert told(world([9, 10, 10, 10]), pair, ranks=4).behind == (Behind(0, f"0xbeef {HASH}", 1, 4),)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(communicator(0xBEEF, [member(0, 0, 4)], [missing(1, 1)]), id="a member does not answer"),
        pytest.param(communicator(0xBEEF, [member(0, 0, 4), member(1, 1, 4, init_state=7)]), id="it is being made"),
        pytest.param(communicator(0xBEEF, [member(0, 0, 4)], size=2), id="a member is not known yet"),
        pytest.param(
            communicator(0xBEEF, [member(0, 0, {"AllReduce": 2}), member(1, 1, {"AllGather": 3})]),
            id="members call different things",
        ),
    ],
)
def test_nobody_in_a_communicator_that_is_known_in_part_is_behind(other: dict[str, Any]) -> None:
    """Rank 0 may wait there."""
    assert told(world([9, 10, 10, 10]), other, ranks=4) == Facts(partial=1)


@pytest.mark.parametrize("status", ["finalize_called", "destroy_flag", "abort_flag"])
def test_a_communicator_that_ends_says_nothing(status: str) -> None:
    """Nor does one that a member has left: nobody waits there, whatever its counts are."""
    ending = communicator(0xBEEF, [member(0, 0, 4), member(1, 1, 7, **{status: True})])
    left = communicator(0xDEAD, [member(0, 0, 4)], [missing(1, 1, unresponsive=False)])
    assert told(world([10, 10, 9, 10]), ending, left, ranks=4).behind == (Behind(2, f"0xf00d {HASH}", 9, 10),)


def test_missing_ranks_are_told_where_more_than_half_answer() -> None:
    """Who reaches half of the job or less may be the one that is cut off."""
    away = {5: False, 6: True}
    assert told(world([1] * 8, away), ranks=8) == Facts((), (Missing(5, False), Missing(6, True)), partial=1)
    assert told(world([1] * 8, dict.fromkeys(range(4, 8), False)), ranks=8).missing == ()
    assert told(world([1] * 2, {1: False}), ranks=2).missing == ()


def test_ranks_beyond_this_host_need_a_communicator_over_all_that_known_ranks_confirm() -> None:
    """Else the number in a communicator is nobody's rank: only processes of this host are named."""
    halves = [
        communicator(name, [member(i, first + i, 5 - (i == 1)) for i in range(8)]) for name, first in ((1, 0), (2, 8))
    ]
    found = told(*halves, ranks=16)
    assert ([each.rank for each in found.behind], found.unnamed) == ([1], 1)
    turned = communicator(3, [member((rank + 1) % 16, rank, 5 - (rank == 9)) for rank in range(16)])
    assert told(turned, ranks=16) == Facts(unnamed=1)
    assert [each.rank for each in told(turned, world([1] * 16), ranks=16).behind] == [9]


def test_two_answers_have_to_agree() -> None:
    """A rank that goes on issues more, one that was late answers, and one is dead only where both say so."""
    first = (
        told(world([9, 10, 10, 10, 10, 9, 9, 9]), ranks=8),
        told(world([1] * 8, {4: False, 5: True, 6: True}), ranks=8),
    )
    then = told(world([9, 11, 11, 11, 11, 9, 10, 9]), ranks=8), told(world([1] * 8, {5: False, 6: True}), ranks=8)
    assert agreed(first[0], first[0]) == first[0]
    assert agreed(first[0], then[0]).behind == ()
    assert (
        agreed(first[0], told(world([9, 10, 10, 10, 10, 9, 10, 9]), ranks=8)).behind
        == first[0].behind[:2] + first[0].behind[3:]
    )
    assert agreed(first[1], then[1]).missing == (Missing(5, False), Missing(6, True))


def test_a_process_with_several_gpus_is_no_known_rank() -> None:
    """Which of its members is the rank is not known."""
    both = [member(0, 0, 4), {**member(1, 1, 5), "pid": process(0)["pid"]}]
    assert told(communicator(1, both), ranks=16, known={process(0)["pid"]: 0}) == Facts(unnamed=1)


def test_processes_of_other_hosts_with_the_same_number_are_others() -> None:
    """The number of a process is of its host."""
    answer = parse(fake_ras.answer(world([1] * 16)))
    pids = {process(12)["pid"]: 12}
    assert known_places(answer, pids, lambda host: host == fake_ras.HOST) == {}


def _changed(change: Any) -> bytes:
    found = world([4, 4])
    change(found)
    return fake_ras.answer(found)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no JSON: NCCL writes it since 2.28.7 (ncclras -f json)"),
        (b"NCCL version 2.26.2 compiled with CUDA 12.4\n", "no JSON: NCCL writes it since 2.28.7 (ncclras -f json)"),
        (
            fake_ras.answer(world([1] * 4, {3: False}), version="2.28.9", comma=False),
            "malformed JSON, as NCCL 2.28 writes it where a rank is missing; NCCL 2.29 does not",
        ),
        (fake_ras.answer(world([1] * 4))[:700], "malformed JSON: Expecting"),
        (b"[" * 100_000 + b"{", "malformed JSON"),
        (b'{"a":' * 100_000, "malformed JSON"),
        (b'{"nccl_version": "2.29.2"}', "communicators must be a list, got nothing"),
        (b'{"communicators": []}', "nccl_version must be a text of at most 64 characters, got nothing"),
        (_changed(lambda found: found.update(size=1)), "has a rank twice or beyond its size"),
        (_changed(lambda found: found["ranks"][1].update(rank=0)), "has a rank twice or beyond its size"),
        (_changed(lambda found: found["ranks"][1].update(rank=True)), "rank must be a whole number"),
        (_changed(lambda found: found["ranks"][1].update(pid=-2)), "pid must be a whole number of -1"),
        (_changed(lambda found: found["ranks"][1].update(host="\x1b[2J")), "host must be a text"),
        (_changed(lambda found: found["ranks"][1].update(host="h" * 65)), "host must be a text"),
        (_changed(lambda found: found["ranks"][1]["collective_counts"].update(AllReduce=1e30)), "AllReduce must be"),
        (_changed(lambda found: found["ranks"][1]["collective_counts"].update(AllReduce=10**30)), "AllReduce must be"),
        (_changed(lambda found: found["ranks"][1].update(status=[])), "status must be an object, got []"),
        (_changed(lambda found: found["ranks"][1]["status"].update(abort_flag=0)), "abort_flag must be true or false"),
        (_changed(lambda found: found["ranks"].append(7)), "a rank must be an object, got 7"),
    ],
)
def test_what_is_no_answer_is_refused_with_the_reason(data: bytes, why: str) -> None:
    """Nothing of it is believed."""
    with pytest.raises(RasError) as caught:
        parse(data)
    assert why in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_answer_of_2_28_without_missing_ranks_is_read() -> None:
    """Only its missing ranks lack a comma. Lines of the protocol before the answer are left out."""
    whole = b"SERVER PROTOCOL 2\nOK\n" + fake_ras.answer(world([3, 4]), version="2.28.9")
    assert (parse(whole).version, [each.issued for each in parse(whole).communicators[0].members]) == ("2.28.9", [3, 4])


def _job(draw: random.Random) -> tuple[Answer, set[int], int]:
    """Return an answer of a job that has come to a standstill, those who stopped, and how many ranks there are.

    All call collectives of groups in the same order. A rank goes on after a call, or waits until all members
    have issued it.
    """
    ranks = draw.randint(2, 12)
    groups = [list(range(ranks))]
    groups += [sorted(draw.sample(range(ranks), draw.randint(2, ranks))) for _ in range(draw.randint(0, 4))]
    calls = [draw.randrange(len(groups)) for _ in range(draw.randint(1, 30))]
    stops = {rank: draw.randint(0, len(calls)) for rank in draw.sample(range(ranks), draw.randint(0, 2))}
    waits = {(rank, call): draw.random() < 0.3 for rank in range(ranks) for call in range(len(calls))}
    issued: list[list[int]] = [[] for _ in range(ranks)]
    at = [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank in draw.sample(range(ranks), ranks):
            call = at[rank]
            if call == len(calls) or stops.get(rank) == call:
                continue
            members = groups[calls[call]]
            if rank in members and (not issued[rank] or issued[rank][-1] != call):
                issued[rank].append(call)
                moved = True
            if rank not in members or not waits[rank, call] or all(call in issued[other] for other in members):
                at[rank] += 1
                moved = True
    made = [
        communicator(
            1 + index,
            [member(i, rank, sum(calls[call] == index for call in issued[rank])) for i, rank in enumerate(group)],
        )
        for index, group in enumerate(groups)
    ]
    stuck = {rank for rank, call in stops.items() if call < len(calls)}
    return parse(fake_ras.answer(*made)), stuck, ranks


def test_no_innocent_is_behind() -> None:
    """Whatever the groups, the order of calls and the waits are; and those who stop are found in most jobs."""
    draw = random.Random(7)
    named = jobs = 0
    for _ in range(1500):
        answer, stuck, ranks = _job(draw)
        found = {each.rank for each in facts(answer, ranks, {}).behind}
        assert found <= stuck
        named, jobs = named + bool(found), jobs + bool(stuck)
    assert named > jobs / 2
