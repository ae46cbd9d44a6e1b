"""Cases of jobs that hang, drawn by a seed: what happened, the dumps that are there, and who is to be named."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from functools import partial

from laggard_exporter.hang.dump import Dump
from laggard_exporter.hang.dump_file import parse
from tests.support.modelled_job import Job, Shape

SHAPES = [
    Shape(data=2),
    Shape(data=4, tensor=2),
    Shape(data=8),
    Shape(data=8, expert=4),
    Shape(pipeline=2),
    Shape(pipeline=4),
    Shape(pipeline=2, data=2, tensor=2),
    Shape(pipeline=4, data=2),
    Shape(pipeline=2, data=4, tensor=4, expert=2),
    Shape(data=64),
    Shape(pipeline=4, data=4, tensor=4, expert=4),
]
FAULTS = ["stops", "stops", "stops", "skips", "wrong", "busy", "none"]


@dataclass
class HangCase:
    """A job, the ranks that left dumps, and the entries that each dump holds."""

    name: str
    job: Job
    ranks: set[int]
    keep: int
    #: Who did something wrong: nobody else may be named.
    guilty: set[int] = field(default_factory=set[int])
    #: Who is to be named by what the dumps show.
    known: set[int] = field(default_factory=set[int])

    @property
    def absent(self) -> set[int]:
        """Ranks that left no dump."""
        return set(range(self.job.ranks)) - self.ranks

    def dumps(self, *, active: bool = False) -> dict[int, Dump]:
        """What the dumps say, or those of active calls; with gloo, where a rank stands is known, as on a live run."""
        return {
            rank: replace(
                parse(json.dumps(self.job.dump(rank, keep=self.keep, active=active)).encode(), rank),
                calling=self.job.waits(rank) if self.job.gloo else None,
            )
            for rank in sorted(self.ranks)
        }


def lost(chance: random.Random, ranks: int) -> set[int]:
    """Return whose dumps are lost, at random: nobody's, one, or of each rank with a chance."""
    kind = chance.random()
    if kind < 0.6:
        return set()
    if kind < 0.75:
        return {chance.randrange(ranks)}
    share = chance.choice([0.02, 0.1, 0.3, 0.6])
    return {rank for rank in range(1, ranks) if chance.random() < share}


def draw(seed: int, *, all_dumps: bool = False, shapes: list[Shape] = SHAPES) -> HangCase:
    """Return the case of a seed."""
    chance = random.Random(f"hang {seed}")
    shape, fault, gloo = chance.choice(shapes), chance.choice(FAULTS), chance.random() < 0.3
    batched = not gloo and chance.random() < 0.5
    new = partial(
        Job, gloo=gloo, batched=batched, aborted=not gloo and chance.random() < 0.2, timed=chance.random() < 0.7
    )
    healthy = new(random.Random(seed), shape)
    places = {rank: len(healthy.program(rank)) for rank in range(shape.ranks)}
    rank = chance.randrange(shape.ranks)
    place = chance.randrange(places[rank])
    collective = [place for place, call in enumerate(healthy.program(rank)) if not call.ways and not call.parts]
    stops: dict[int, int] = {}
    if fault == "stops":
        some = chance.sample(range(shape.ranks), min(shape.ranks - 1, chance.choice([1, 1, 1, 2, 3])))
        stops = {each: chance.randrange(places[each]) for each in some}
    job = new(
        random.Random(seed),
        shape,
        stops=stops,
        skips={rank: place} if fault == "skips" else {},
        wrong=(rank, chance.choice(collective)) if fault == "wrong" else None,
        busy={rank: chance.choice(collective)} if fault == "busy" and not gloo else {},
    )
    ranks = set(range(shape.ranks)) - (set() if all_dumps else lost(random.Random(f"lost {seed}"), shape.ranks))
    keep = chance.choice([2000, 2000, 2000, 24, 12, 5])
    guilty = {*job.stops, *job.skips, *job.busy, *([job.wrong[0]] if job.wrong else [])}
    name = f"{seed}: {fault} {guilty or ''} {'gloo' if gloo else 'nccl'} {shape}"
    return HangCase(name, job, ranks, keep, guilty, job.known_culprits(ranks, keep=keep))
