"""A rank without a dump is named only where no other fault of the job would leave the same dumps on all others."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import pytest

from laggard_exporter.hang.dump_file import parse
from laggard_exporter.hang.verdict import Reason, Verdict, judge
from tests.exporter.hang.test_verdict import named, verdict
from tests.support.modelled_job import Job, Shape
from tests.support.recorded_job import RecordedJob, mesh


def faults(new: partial[Job]) -> Iterator[tuple[Job, int]]:
    """Yield the job with each fault that one rank can have at each of its calls, and the rank."""
    healthy = new()
    for rank in range(healthy.ranks):
        for place, call in enumerate(healthy.program(rank)):
            found = [new(stops={rank: place}), new(skips={rank: place})]
            if not call.ways and not call.parts:
                found += [new(wrong=(rank, place)), new(busy={rank: place})]
            yield from ((job, rank) for job in found if any(map(job.waits, range(job.ranks))))


def judged(shape: Shape, *, timed: bool) -> Iterator[tuple[set[int], int, Verdict]]:
    """Yield for each lost dump, and each content that the others can have, who may be guilty, and the verdict."""
    guilty: dict[tuple[int, tuple[str, ...]], set[int]] = defaultdict(set)
    for job, culprit in faults(partial(Job, random.Random(1), shape, steps=2, batched=False, timed=timed)):
        dumps = [job.dump(rank, keep=2000) for rank in range(job.ranks)]
        for dump in dumps:
            for entry in dump.get("entries", ()):
                entry["time_created_ns"] = 0  # the only thing that chance decides
        texts = [json.dumps(dump) for dump in dumps]
        for lost in range(job.ranks):
            guilty[lost, (*texts[:lost], "", *texts[lost + 1 :])].add(culprit)
    for (lost, texts), ranks in guilty.items():
        dumps = {rank: parse(text.encode(), rank) for rank, text in enumerate(texts) if text}
        yield ranks, lost, judge(dumps, shape.ranks)


@pytest.mark.parametrize(
    ("shape", "timed"),
    [
        (Shape(data=3), True),
        (Shape(data=4), True),
        (Shape(data=2), True),
        (Shape(data=4, expert=2), True),
        (Shape(data=2, tensor=2), True),
        (Shape(pipeline=2, data=2), True),
        (Shape(pipeline=3), True),
        (Shape(data=4), False),
    ],
    ids=str,
)
def test_whoever_may_be_innocent_is_not_named(shape: Shape, *, timed: bool) -> None:
    """Of all single faults that leave the same dumps none has another culprit; groups of three show all that is so."""
    provable = proven = 0
    for guilty, lost, found in judged(shape, timed=timed):
        assert all(guilty == {rank} for rank in named(found)), (guilty, lost, found)
        provable, proven = provable + (guilty == {lost}), proven + (lost in named(found))
    assert provable
    if timed and shape in (Shape(data=3), Shape(data=4)):
        assert proven == provable
    if not timed or shape.pipeline > 1:
        assert not proven


def test_more_absent_ranks_than_evidence_are_not_told_apart() -> None:
    """One of them may hold the other, in a group that only the two are in."""
    job = RecordedJob(*mesh(16, 4, steps=3), stops={5: 7})
    assert named(verdict(job, without=(5,))) == {5: Reason.NO_DUMP}
    found = verdict(job, without=(5, 11))
    assert (named(found), found.remarks) == ({}, ("not told apart: ranks 5, 11 left no dump",))


def test_a_rank_that_waits_for_nobody_makes_the_absent_one_uncertain() -> None:
    """It may be the one that the absent rank waits for."""
    job = RecordedJob(
        {"0": (0, 1, 2, 3), "7": (0, 3)}, [("7", "all_reduce"), ("0", "all_reduce")] * 2, stops={0: 2, 3: 3}
    )
    found = verdict(job, without=(3,))
    assert named(found) == {0: Reason.OUTSIDE}
    job = RecordedJob({"0": (1, 2, 3), "7": (0, 3)}, [("7", "all_reduce"), ("0", "all_reduce")] * 2, stops={0: 1})
    found = verdict(job, without=(3,))
    assert (named(found), found.remarks) == (
        {},
        ("not told apart: rank 3 left no dump; not each of the others waits for it",),
    )


def test_a_process_that_has_ended_is_named_however_many_dumps_are_lost() -> None:
    """That others wait for it and that it is gone is proof; whoever else is waited for comes after it."""
    job = RecordedJob(*mesh(8, 2, steps=3), stops={5: 7, 2: 3})
    dumps = {rank: parse(json.dumps(job.dump(rank)).encode(), rank) for rank in range(8) if rank not in (1, 6)}
    found = judge(dumps, 8, gone={5})
    assert named(found) == {5: Reason.GONE}
    assert found.culprits[0].newest is None
    assert named(judge(dumps, 8)) == {2: Reason.OUTSIDE}
    (remark,) = found.remarks
    assert remark == "ranks 1, 6 left no dump, so nothing is known there"


def test_an_end_that_keeps_nobody_waiting_is_no_culprit() -> None:
    """As of a rank that has ended after its last collective."""
    job = RecordedJob({"0": (0, 1), "1": (2, 3)}, [("0", "all_reduce"), ("1", "all_reduce")], stops={1: 0})
    dumps = {rank: parse(json.dumps(job.dump(rank)).encode(), rank) for rank in range(4)}
    assert named(judge(dumps, 4, gone={3})) == {1: Reason.OUTSIDE}
