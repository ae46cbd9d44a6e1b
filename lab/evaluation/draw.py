"""Draws jobs: everything that a scenario leaves open follows from a seed."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from lab.evaluation.model.faults import FOREVER
from lab.evaluation.model.job import Job, Pause
from laggard.shared.phases import Phase

#: Steps (seconds of own time) and how often they are drawn; the long ones need hours of virtual time.
_STEPS = (
    (0.02, 0.1, 0.2),
    (0.1, 1.0, 0.45),
    (1.0, 3.0, 0.17),
    (3.0, 10.0, 0.1),
    (10.0, 30.0, 0.05),
    (30.0, 60.0, 0.03),
)
#: Up to so many seconds a step, a verdict on means takes so long. See rules/README.md.
_PATIENCE = ((3.6, 330.0), (11.0, 720.0), (37.0, 1900.0), (FOREVER, 4400.0))
#: The same for a verdict on steps that differ, whose windows must hold 150 steps.
_UNSTEADY = ((0.37, 420.0), (1.1, 900.0), (3.6, 2100.0), (FOREVER, 4400.0))
#: With more ranks than these, steps are of seconds at most, for which minutes suffice.
_MANY = 100


def patience(step: float) -> float:
    """Return how long a verdict on means may take, with such steps."""
    return next(seconds for limit, seconds in _PATIENCE if step < limit)


def unsteady_patience(step: float) -> float:
    """Return how long a verdict on steps that differ may take, with such steps."""
    return next(seconds for limit, seconds in _UNSTEADY if step < limit)


class Draw:
    """A source of chance for one case, and the plain job that it starts from.

    Args:
        seed: decides what is drawn, with the next three.
        scenario: its name.
        ranks: how many the job has.
        number: tells cases of one scenario and as many ranks apart.
        step: seconds of own time, instead of those that are drawn; all else stays as it is drawn.
    """

    def __init__(self, seed: int, scenario: str, ranks: int, number: int = 0, *, step: float | None = None) -> None:
        self.random = np.random.default_rng((seed, zlib.crc32(scenario.encode()), ranks, number))
        self.ranks = ranks
        self.name = f"{scenario}-{ranks}-{seed}" + (f"-{number}" if number else "")
        chance = self.random
        low, high, _ = _STEPS[chance.choice(len(_STEPS), p=[share for *_, share in _STEPS])]
        own = self.between(low, high, evenly=False)
        if ranks > _MANY:
            own = self.between(0.1, 3.0, evenly=False)
        own = own if step is None else step
        pauses: tuple[Pause, ...] = ()
        # Two in five save checkpoints.
        if self.chance(0.4):
            pauses = (Pause(Phase.CHECKPOINT, self.between(240, 900), self.between(1, 40), self.chance(0.5)),)
        self.plain = Job(
            run=self.name,
            ranks=ranks,
            own=own,
            cv=self.between(0.02, 0.2),
            spread=self.between(0, 0.02),
            common=self.between(0, 0.2) if self.chance(0.5) else 0.0,
            wander=self.between(0, 0.02),
            mix=self._mix(),
            transfer=self.between(0.01, 0.12),
            pauses=pauses,
            start=self.between(0, 60),
            startup=self.between(5, 60),
            compile=self.between(0, 30),
            warmup=int(chance.integers(1, 6)),
            push=self.chance(0.2),
            seed=int(chance.integers(2**31)),
        )

    @property
    def pair(self) -> bool:
        """Whether there are two ranks, of which nobody can tell the unusual one."""
        return self.ranks == 2  # noqa: PLR2004 - what a pair is

    def fills(self, stages: int) -> bool:
        """Return whether each of these pipeline stages has two ranks or more."""
        return self.ranks >= 2 * stages

    def chance(self, share: float) -> bool:
        """Draw whether something with that share of chance is so."""
        return bool(self.random.random() < share)

    def between(self, low: float, high: float, *, evenly: bool = True) -> float:
        """Draw a number, evenly or with even logarithms."""
        if evenly:
            return float(self.random.uniform(low, high))
        return float(np.exp(self.random.uniform(np.log(low), np.log(high))))

    def some(self, count: int) -> tuple[int, ...]:
        """Draw ranks, of which at least one is left."""
        count = max(1, min(count, self.ranks - 1))
        return tuple(sorted(int(rank) for rank in self.random.choice(self.ranks, count, replace=False)))

    def begin(self, job: Job | None = None) -> float:
        """Draw when a fault begins: some minutes and at least 20 steps after the start."""
        job = job or self.plain
        return job.start + job.startup + job.compile + 22 * job.own + self.between(90, 240)

    def patience(self, factor: float = 1.0) -> float:
        """Return how long a verdict on means may take, with steps that are so much longer than healthy ones."""
        step = self.plain.own * factor * (1 + self.plain.common) / (1 - self.plain.transfer)
        return patience(step)

    def job(self, horizon: float, **changes: Any) -> Job:
        """Return the plain job with changes, watched until a horizon."""
        return replace(self.plain, horizon=horizon, **changes)

    def shorten(self, limit: float) -> None:
        """Bring the step below a limit, where a scenario is about seconds."""
        if self.plain.own > limit:
            self.plain = replace(self.plain, own=self.between(0.05, limit, evenly=False))

    def calm(self, limit: float) -> None:
        """Bring the noise below a limit, where a scenario is about steps that differ."""
        noise = {"cv": min(self.plain.cv, limit), "common": min(self.plain.common, limit)}
        self.plain = replace(self.plain, pauses=(), **noise)

    def _mix(self) -> tuple[float, ...]:
        shares = np.array([0.03, 0.03, 0.3, 0.54, 0.06, 0.04]) * np.exp(0.3 * self.random.standard_normal(6))
        return tuple(float(share) for share in shares / shares.sum())
