"""Makes steps in blocks, as arrays of steps by ranks: noise, faults, queues, waits, pauses and hangs.

All ranks of a job meet once in a step, in the transfer between backward and optimizer. Who arrives first waits for the
last, so the time between two meetings is the same for all, and no rank's step tells who is slow. What a rank does after
the meeting makes it late for the next one. In a pipeline it also waits between its passes, as the schedule has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.evaluation.model.faults import (
    Bursts,
    Collection,
    Death,
    Hang,
    Recompile,
    Roaming,
    Slow,
    Supply,
    Throttle,
    Transfer,
    Unsteady,
)
from lab.evaluation.model.job import HEAD, OWN, TAIL, Job
from lab.evaluation.model.schedule import ends
from laggard.shared.phases import Phase

Array = NDArray[np.float64]

#: A block covers about this many seconds, and holds at most so many samples of one phase.
_BLOCK_SECONDS = 5.0
_BLOCK_SAMPLES = 400_000
#: How fast slow wander changes: the share that stays after a block.
_WANDER_KEEPS = 0.97
#: Rows of OWN that run on the device.
_COMPUTE = slice(2, 5)
#: Why a step stays out of the means; 0 is a step that does not.
REASONS = ("", "warmup", "compile", "first_batch")


@dataclass
class Block:
    """Steps: times of their meetings; own work (phase, step and rank), waits, fetches and tails (step by rank)."""

    meetings: Array
    work: Array
    waits: Array
    fetches: Array
    tails: Array
    #: Index into REASONS of each step, and how long it took.
    reasons: NDArray[np.int64]
    lengths: Array
    #: Seconds of garbage collection in each step, which are part of ``work``; empty where nothing is collected.
    collected: Array
    recompiled: int
    #: Pauses behind steps: step, phase, seconds by rank.
    pauses: list[tuple[int, Phase, Array]]
    #: Training ends with this block.
    last: bool = False


class Maker:
    """Makes the blocks of one incarnation of a job, one after the other."""

    def __init__(self, job: Job, ranks: int, start: float, seed: int) -> None:
        self._job, self._ranks, self._start = job, ranks, start
        self._random = np.random.default_rng(seed)
        stage = np.repeat(np.array(job.stages), -(-ranks // len(job.stages)))[:ranks]
        fixed = 1 + job.spread * self._random.standard_normal(ranks)
        self._base = job.own * np.array(job.mix)[:, None] * (stage * fixed)[None, :]
        self._wander = np.zeros(ranks)
        self._next_pause = [start + pause.every * (0.6 + 0.4 * self._random.random()) for pause in job.pauses]
        self._next_epoch = start + job.epochs[0] if job.epochs else np.inf
        self._next_compile = [fault.begin for fault in job.of(Recompile)]
        self._offsets = self._random.integers(0, 1_000_000, ranks)
        self._supply: _Queue | None = None
        self._made = 0

    def make(self, now: float, tail: Array, size: int | None = None) -> Block:
        """Return the steps that follow a meeting, after which each rank still does ``tail``."""
        job, random = self._job, self._random
        size = size or int(np.clip(_BLOCK_SECONDS / job.own, 1, max(1, _BLOCK_SAMPLES // self._ranks)))
        work = self._work(now, size)
        reasons = np.where(np.arange(self._made, self._made + size) < job.warmup, REASONS.index("warmup"), 0)
        recompiled = self._exceptions(now, work, reasons)
        collected = self._collect(now, work)
        # A share of the step that it makes: transfer = share by (own + transfer).
        share = max([job.transfer, *(fault.share for fault in job.of(Transfer) if fault.at(now))])
        transfer = job.own * share / (1 - share) * np.maximum(0.2, 1 + job.transfer_cv * random.standard_normal(size))
        for burst in job.of(Bursts):
            if burst.at(now):
                transfer += job.own * burst.excess * (random.random(size) < burst.chance)
        pauses = self._pauses(now, size)
        tails = work[TAIL].sum(axis=0)
        for step, _, seconds in pauses:
            tails[step] += seconds
        before = np.vstack((tail[None, :], tails[:-1]))
        fetches = self._load(now, work, before, transfer, reasons) if job.loader else np.zeros((0, 0))
        busy = before + work[HEAD].sum(axis=0)
        arrivals = self._pipeline(before, work) if job.pipeline else busy
        lengths = arrivals.max(axis=1) + transfer
        meetings = now + np.cumsum(lengths)
        waits = lengths[:, None] - busy
        self._hang(now, work, meetings, waits)
        past_end = int(np.searchsorted(meetings, job.end)) + 1
        last = past_end <= size and bool(np.isfinite(meetings[past_end - 1]))
        size = past_end if last else size
        self._made += size
        return Block(
            meetings[:size], work[:, :size], waits[:size], fetches[:size], tails[:size], reasons[:size],
            lengths[:size], collected[:size], recompiled, [each for each in pauses if each[0] < size], last,
        )  # fmt: skip

    def _work(self, now: float, size: int) -> Array:
        """Return the seconds of each own phase, step and rank, with noise and whatever is slow."""
        job, random, ranks = self._job, self._random, self._ranks
        sigma = np.sqrt(np.log1p(job.cv**2))
        noise = np.exp(sigma * random.standard_normal((size, ranks)) - sigma**2 / 2)
        self._wander = _WANDER_KEEPS * self._wander + np.sqrt(1 - _WANDER_KEEPS**2) * random.standard_normal(ranks)
        noise *= 1 + job.wander * self._wander
        if job.common:
            noise *= np.maximum(0.3, 1 + job.common * random.standard_normal((size, 1)))
        work = self._base[:, None, :] * noise[None, :, :]
        times = now + np.arange(size) * job.own
        own = self._base.sum(axis=0)
        for slow in job.of(Slow):
            strength = np.array([slow.strength(time) for time in times])
            for rank in slow.ranks if strength.any() else ():
                if slow.phase is None:
                    work[:, :, rank] *= 1 + strength
                else:
                    work[OWN.index(slow.phase), :, rank] += strength * own[rank] * noise[:, rank]
        self._disturb(now, work, own)
        return work

    def _disturb(self, now: float, work: Array, own: Array) -> None:
        """Put in faults of which a block has all or nothing."""
        job, random = self._job, self._random
        size, ranks = work.shape[1:]
        for throttle in job.of(Throttle):
            if throttle.at(now):
                work[_COMPUTE, :, list(throttle.ranks)] /= throttle.clock
        # Of a pipeline all stages have what its batch has: the ranks of a replica are so far apart.
        replicas = ranks // len(job.stages) if job.pipeline else ranks
        for roaming in job.of(Roaming):
            if roaming.at(now):
                chosen = random.integers(0, replicas, size)
                for first in range(0, ranks, replicas):
                    work[2:4, np.arange(size), first + chosen] *= 1 + (roaming.factor - 1) / sum(job.mix[2:4])
        for unsteady in job.of(Unsteady):
            if unsteady.at(now):
                chosen = list(unsteady.ranks) if unsteady.ranks is not None else list(range(ranks))
                struck = random.random((size, 1 if unsteady.together else len(chosen))) < unsteady.chance
                long = unsteady.excess * (0.8 + 0.4 * random.random((size, len(chosen))))
                work[OWN.index(unsteady.phase)][:, chosen] += own[chosen] * long * struck

    def _exceptions(self, now: float, work: Array, reasons: NDArray[np.int64]) -> int:
        """Let the first step, and whatever compiles anew, take long; return how often it did."""
        if self._made == 0:
            work[2, 0] += self._job.compile
            if self._job.compile:
                reasons[0] = REASONS.index("compile")
        count = 0
        for number, fault in enumerate(self._job.of(Recompile)):
            if fault.at(now) and now >= self._next_compile[number]:
                work[2, 0] += fault.seconds * (0.9 + 0.2 * self._random.random(self._ranks))
                reasons[0] = REASONS.index("compile")
                self._next_compile[number] = max(now, self._next_compile[number] + fault.every)
                count += 1
        if self._job.epochs and now >= self._next_epoch:
            work[0, 0] += self._job.epochs[1] * (0.9 + 0.2 * self._random.random(self._ranks))
            reasons[0] = REASONS.index("first_batch")
            self._next_epoch += self._job.epochs[0]
        return count

    def _collect(self, now: float, work: Array) -> Array:
        """Let ranks stop for garbage collection in some steps; return for how long."""
        faults = [fault for fault in self._job.of(Collection) if fault.at(now)]
        size, ranks = work.shape[1:]
        if not faults:
            return np.zeros((size, 0))
        collected = np.zeros((size, ranks))
        for fault in faults:
            offsets = self._offsets * (not fault.together)
            struck = (np.arange(self._made, self._made + size)[:, None] + offsets[None, :]) % fault.every == 0
            collected += struck * fault.pause * self._job.own
        work[2] += collected
        return collected

    def _load(self, now: float, work: Array, before: Array, transfer: Array, reasons: NDArray[np.int64]) -> Array:
        """Put the waits for data into ``work``; return how long workers needed for each batch."""
        job = self._job
        assert job.loader is not None
        size, ranks = work.shape[1:]
        factor = np.full(ranks, job.loader.share)
        for supply in job.of(Supply):
            if supply.at(now):
                factor[list(supply.ranks) if supply.ranks is not None else slice(None)] = supply.factor
        needed = job.loader.workers * factor * job.own / (1 - job.transfer)
        fetches = needed * np.maximum(0.1, 1 + 0.3 * self._random.standard_normal((size, ranks)))
        if self._supply is None:
            self._supply = _Queue(job.loader.workers, job.loader.workers * job.loader.prefetch, ranks, now)
        clock, rest = now, work[1 : HEAD.stop].sum(axis=0)
        first = np.where(reasons == REASONS.index("first_batch"), work[0].mean(axis=1), 0.0)
        for step in range(size):
            asks = clock + before[step]
            work[0, step] = self._supply.take(asks, fetches[step]) - asks + 0.002 * job.own + first[step]
            clock += float((before[step] + work[0, step] + rest[step]).max() + transfer[step])
        return fetches

    def _pipeline(self, before: Array, work: Array) -> Array:
        """Return when each rank has ended its last pass, by step and rank, counted from the meeting before."""
        pipeline, stages = self._job.pipeline, len(self._job.stages)
        assert pipeline is not None
        size, ranks = before.shape
        # As stage by step by replica.
        ready, forward, backward = (
            each.reshape(size, stages, ranks // stages).swapaxes(0, 1)
            for each in (before + work[:2].sum(axis=0), work[2], work[3])
        )
        noise = self._random.standard_normal((pipeline.micro_batches, size, ranks // stages))
        parts = np.maximum(0.2, 1 + pipeline.variation * noise)
        found = ends(pipeline, ready, forward, backward, parts / parts.sum(axis=0))
        return found.swapaxes(0, 1).reshape(size, ranks)

    def _pauses(self, now: float, size: int) -> list[tuple[int, Phase, Array]]:
        """Return step, phase and seconds by rank of what is done behind some steps."""
        made: list[tuple[int, Phase, Array]] = []
        for number, pause in enumerate(self._job.pauses):
            if self._next_pause[number] <= now < pause.end and not pause.gap[0] <= now < pause.gap[1]:
                seconds = np.zeros(self._ranks)
                seconds[: 1 if pause.alone else None] = pause.seconds * (1 + 0.1 * self._random.random())
                made.append((size - 1, pause.phase, seconds))
                self._next_pause[number] = now + pause.every
        return made

    def _hang(self, now: float, work: Array, meetings: Array, waits: Array) -> None:
        """Let a fault that holds a rank delay the first meeting behind it, for ever if it does not end."""
        for fault in (*self._job.of(Hang), *self._job.of(Death)):
            if fault.begin < self._start or not now <= fault.begin < meetings[-1]:
                continue
            step = int(np.searchsorted(meetings, fault.begin, side="right"))
            held = fault.end - fault.begin
            meetings[step:] += held
            others = np.ones(self._ranks, dtype=bool)
            phase = fault.phase if isinstance(fault, Hang) else Phase.FORWARD
            if phase is not Phase.COMMUNICATION:
                others[list(fault.ranks)] = False
                work[OWN.index(phase), step, list(fault.ranks)] += held
            waits[step, others] += held


class _Queue:
    """Batches of each rank's loader: a worker begins one when it is free and the queue has room."""

    def __init__(self, workers: int, depth: int, ranks: int, now: float) -> None:
        self._ready = np.full((workers, ranks), float(now))
        self._taken = np.full((depth, ranks), float(now))
        self._batch = 0

    def take(self, asks: Array, fetch: Array) -> Array:
        """Return when each rank gets its next batch."""
        worker, place = self._batch % len(self._ready), self._batch % len(self._taken)
        ready = np.maximum(self._ready[worker], self._taken[place]) + fetch
        takes = np.maximum(asks, ready)
        self._ready[worker], self._taken[place] = ready, takes
        self._batch += 1
        return takes
