"""Verdicts on modelled jobs with known truth: nobody innocent is named, and who is to be found is found."""

from __future__ import annotations

import json
import random

import pytest

from laggard_exporter.hang.dump import Dump, parse
from laggard_exporter.hang.verdict import Reason, Verdict, judge
from tests.support.modelled_job import Job

SHAPES = [(1, 2, 1), (1, 4, 2), (1, 8, 1), (2, 2, 2), (4, 1, 1), (4, 2, 1), (2, 4, 4), (1, 64, 1)]


def judged(job: Job, ranks: set[int], keep: int) -> Verdict:
    """Judge a job by the dumps of some of its ranks."""
    dumps: dict[int, Dump] = {rank: parse(json.dumps(job.dump(rank, keep=keep)).encode(), rank) for rank in ranks}
    return judge(dumps, job.ranks)


def stopped(seed: int, shape: tuple[int, int, int], *, gloo: bool) -> tuple[Job, set[int], int]:
    """A job of which up to three ranks stop, the ranks whose dumps are there, and the entries that each holds."""
    chance = random.Random(f"{seed} {shape} {gloo}")
    ranks = shape[0] * shape[1] * shape[2]
    stops = {rank: chance.randrange(1, 12) for rank in chance.sample(range(ranks), min(ranks - 1, 1 + seed % 3))}
    job = Job(chance, *shape, gloo=gloo, stops=stops)
    absent = set(chance.sample(range(ranks), chance.randrange(ranks // 3 + 1))) if seed % 4 == 3 else set[int]()
    return job, set(range(ranks)) - absent, chance.choice([2000, 2000, 12, 5])


@pytest.mark.parametrize("gloo", [False, True])
def test_who_stops_is_named_and_nobody_else(gloo: bool) -> None:  # noqa: FBT001 - a parameter of the matrix
    """Precision is 1, recall 0.98 of those whom the dumps can show, over pipelines, meshes, short rings, lost dumps."""
    known = found = 0
    # Gloo records neither sends nor receives, so a rank that waits in one looks idle.
    for shape in [each for each in SHAPES if each[0] == 1 or not gloo]:
        for seed in range(40 if shape[1] < 64 else 4):
            job, ranks, keep = stopped(seed, shape, gloo=gloo)
            verdict = judged(job, ranks, keep)
            named = {culprit.rank for culprit in verdict.culprits}
            without_dump = {culprit.rank for culprit in verdict.culprits if culprit.reason is Reason.NO_DUMP}
            assert named <= job.stops.keys() | without_dump, (shape, seed, verdict)
            assert not without_dump & ranks
            truth = job.known_culprits(ranks, keep=keep)
            known, found = known + len(truth), found + len(truth & named)
    assert known > (20 if gloo else 100)
    assert found / known >= 0.98, f"{found} of {known}"


@pytest.mark.parametrize("ranks", [4, 16, 256])
@pytest.mark.parametrize("seed", range(5))
def test_who_brings_another_size_is_named(ranks: int, seed: int) -> None:
    """All members have issued it, and it never ends."""
    chance = random.Random(f"size {ranks} {seed}")
    culprit = chance.randrange(ranks)
    job = Job(chance, 1, ranks, 1, wrong=(culprit, 1 + 3 * (seed % 3)))
    found = judged(job, set(range(ranks)), 2000)
    assert [(each.rank, each.reason) for each in found.culprits] == [(culprit, Reason.SIZE)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gloo", [False, True])
def test_nobody_is_named_where_all_has_ended(shape: tuple[int, int, int], gloo: bool) -> None:  # noqa: FBT001
    """A job that has come to its end, by rings of any length."""
    job = Job(random.Random(1), *shape, gloo=gloo)
    for keep in (3, 2000):
        assert judged(job, set(range(job.ranks)), keep).culprits == ()
