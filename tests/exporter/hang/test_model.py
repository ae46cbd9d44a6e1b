"""Verdicts on modelled jobs with known truth: nobody innocent is named, and who is to be found is found.

`HANG_CASES=2000 pytest tests/exporter/hang/test_model.py` draws more cases.
"""

from __future__ import annotations

import os
import random
from functools import partial

import pytest

from laggard_exporter.hang.dump import Dump
from laggard_exporter.hang.verdict import Reason, Verdict, judge
from tests.support.hang_cases import SHAPES, HangCase, draw
from tests.support.modelled_job import SECOND, START, Job, Shape

CASES = int(os.environ.get("HANG_CASES", "240"))


def dumps_of(job: Job, ranks: set[int], *, keep: int = 2000) -> dict[int, Dump]:
    """What the dumps of some ranks say."""
    return HangCase("", job, ranks, keep).dumps()


def named(verdict: Verdict) -> set[int]:
    """Who is named."""
    return {culprit.rank for culprit in verdict.culprits}


def test_who_is_guilty_is_named_and_nobody_else() -> None:
    """Precision is 1, recall 0.98 of those whom their dumps can show.

    Pipelines, meshes, experts, NCCL and gloo, short rings, dumps lost at random, aborted communicators, ranks that
    stop, leave a call out, bring another size or whose device does not begin.
    """
    known = found = 0
    for seed in range(CASES):
        case = draw(seed)
        verdict = judge(case.dumps(), case.job.ranks)
        assert named(verdict) <= case.guilty, (case.name, verdict)
        known, found = known + len(case.known), found + len(case.known & named(verdict))
    assert known > CASES / 4
    assert found / known >= 0.98, f"{found} of {known}"


def test_dumps_of_active_calls_name_nobody_innocent() -> None:
    """Torch and others leave out what has ended, if asked; without pipelines the guilty are found as with all calls.

    Parts of batches that have ended stay there, and who has only such may wait in a send.
    """
    known = found = 0
    for case in (draw(seed) for seed in range(CASES)):
        if not case.job.gloo:
            verdict = judge(case.dumps(active=True), case.job.ranks)
            assert named(verdict) <= case.guilty, (case.name, verdict)
            if case.job.shape.pipeline == 1:
                known, found = known + len(case.known), found + len(case.known & named(verdict))
    assert known > CASES / 12
    assert found / known >= 0.95, f"{found} of {known}"


@pytest.mark.patient
def test_one_of_thousands_is_named() -> None:
    """4,096 ranks in groups along four axes."""
    job = Job(random.Random(1), Shape(pipeline=8, data=64, tensor=8, expert=8), steps=1, stops={1234: 20})
    verdict = judge(dumps_of(job, set(range(4096))))
    assert [(culprit.rank, culprit.reason) for culprit in verdict.culprits] == [(1234, Reason.OUTSIDE)]
    assert (verdict.ranks, verdict.dumps) == (4096, 4096)


@pytest.mark.patient
@pytest.mark.parametrize(
    ("lost", "names"),
    [({1234}, {1234: Reason.NO_DUMP}), ({1234, 77}, {}), ({77}, {1234: Reason.OUTSIDE}), (set(range(1, 4096, 3)), {})],
)
def test_one_of_thousands_that_left_no_dump(lost: set[int], names: dict[int, Reason]) -> None:
    """It is named where nobody else can be the culprit, and with a second dump that is lost nobody is."""
    job = Job(random.Random(3), Shape(data=512, tensor=8), steps=1, stops={1234: 6})
    assert not job.waits(1234)
    found = judge(dumps_of(job, set(range(4096)) - lost), 4096)
    assert {culprit.rank: culprit.reason for culprit in found.culprits} == names


@pytest.mark.parametrize("ranks", [4, 16, 256])
@pytest.mark.parametrize("seed", range(5))
def test_who_brings_another_size_is_named(ranks: int, seed: int) -> None:
    """All members have issued it, and it never ends."""
    chance = random.Random(f"size {ranks} {seed}")
    culprit = chance.randrange(ranks)
    job = Job(chance, Shape(data=ranks), wrong=(culprit, 1 + 3 * (seed % 3)))
    found = judge(dumps_of(job, set(range(ranks))), ranks)
    assert [(each.rank, each.reason) for each in found.culprits] == [(culprit, Reason.SIZE)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("gloo", "batched"), [(False, True), (False, False), (True, False)])
def test_nobody_is_named_where_all_has_ended(shape: Shape, *, gloo: bool, batched: bool) -> None:
    """A job that has come to its end, by rings of any length."""
    job = Job(random.Random(1), shape, gloo=gloo, batched=batched)
    assert job.done == [len(job.program(rank)) for rank in range(job.ranks)]
    for keep in (3, 2000):
        assert judge(dumps_of(job, set(range(job.ranks)), keep=keep), job.ranks).culprits == ()


@pytest.mark.parametrize("seed", range(60))
def test_attempts_are_told_apart_however_close_they_are(seed: int) -> None:
    """A restart leaves dumps of the attempt before on ranks that left none in the newer one."""
    chance = random.Random(f"attempts {seed}")
    shape = chance.choice([each for each in SHAPES if 2 < each.ranks < 64])
    attempt = partial(Job, random.Random(seed), shape, gloo=chance.random() < 0.3, batched=False)
    stopped = chance.sample(range(shape.ranks), 2)
    # Before its first step is over on each, a job has too little in its dumps.
    stops = [{rank: chance.randrange(8, 20)} for rank in stopped]
    old = attempt(stops=stops[0])
    new = attempt(stops=stops[1], start=old.end + chance.choice([3, 60, 9000]) * SECOND)
    left = {rank for rank in range(shape.ranks) if chance.random() < 0.3} - {stopped[1]}
    found = judge({**dumps_of(new, set(range(shape.ranks)) - left), **dumps_of(old, left)}, shape.ranks)
    assert named(found) <= {stopped[1]}, found
    assert ("of an earlier attempt" in " ".join(found.remarks)) == bool(left)
    assert START < old.end < new.start
