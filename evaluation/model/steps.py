"""The step model: phases, waits and counters of synchronous ranks, step by step.

All ranks of a job meet once in a step, in the transfer between backward and optimizer. Who arrives first waits for the
last, so the time between two meetings is the same for all, and no rank's step tells who is slow. What a rank does after
the meeting makes it late for the next one. Steps are made in blocks, as arrays of steps by ranks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.job import FOREVER, HEAD, OWN, TAIL, Death, Hang, Job, Roaming, Slow, Supply, Transfer
from laggard.conventions import RECENT_STEPS, Phase

Array = NDArray[np.float64]

#: A block covers about this many seconds, and holds at most so many samples of one phase.
_BLOCK_SECONDS = 5.0
_BLOCK_SAMPLES = 400_000
#: How fast slow wander changes: the share that stays after a block.
_WANDER_KEEPS = 0.97


@dataclass
class Moment:
    """Where the ranks stand at one time. Arrays are by rank; totals count steps that ended."""

    steps: Array
    #: Steps in the means; the seconds are those of these steps, of phases as phase by rank.
    counted: Array
    phase_seconds: Array
    fetched_seconds: Array
    floor: Array
    last_step: Array
    #: Phase, how long ago it began, collectives begun, whether inside one.
    phase: NDArray[np.int64]
    phase_age: Array
    sequence: Array
    inside: NDArray[np.bool_]


@dataclass
class _Block:
    """Steps: times of their meetings; own work (phase, step and rank), waits, fetches and tails (step by rank)."""

    meetings: Array
    work: Array
    waits: Array
    fetches: Array
    tails: Array
    counted: NDArray[np.bool_]
    #: Pauses behind steps: step, phase, seconds by rank.
    pauses: list[tuple[int, Phase, Array]]


class Training:
    """The steps of one incarnation of a job. Times are seconds of the evaluation's clock; ask in their order."""

    def __init__(self, job: Job, ranks: int, start: float, seed: int) -> None:
        self._job = job
        self._ranks = ranks
        self._random = np.random.default_rng(seed)
        stage = np.repeat(np.array(job.stages), -(-ranks // len(job.stages)))[:ranks]
        fixed = 1 + job.spread * self._random.standard_normal(ranks)
        self._base = job.own * np.array(job.mix)[:, None] * (stage * fixed)[None, :]
        self._wander = np.zeros(ranks)
        self._next_pause = [start + pause.every * (0.6 + 0.4 * self._random.random()) for pause in job.pauses]
        self._supply: _Queue | None = None
        # Time of the newest meeting, and what each rank still does behind it.
        self._met = start
        self._tail = np.zeros(ranks)
        self._made = self._number = 0
        self._block: _Block | None = None
        self._index = 0
        self._ended = False
        self._steps = np.zeros(ranks)
        self._counted = np.zeros(ranks)
        self._fetched = np.zeros(ranks)
        self._seconds = np.zeros((len(Phase), ranks))
        self._floors: deque[tuple[int, Array]] = deque()
        self._seconds_before = self._seconds
        # Of the newest step: what follows its meeting, and whether it counts.
        self._left: list[tuple[Phase, Array]] = []
        self._newest_counts = False
        #: When the newest step but one ended.
        self._earlier_end = np.full(ranks, np.nan)

    def at(self, time: float) -> Moment:
        """Return where the ranks stand."""
        while not self._ended and (self._block is None or self._block.meetings[-1] <= time):
            if self._block is not None:
                self._take(self._block, len(self._block.meetings))
            self._block, self._index = self._make(), 0
        block = self._block
        assert block is not None
        self._take(block, int(np.searchsorted(block.meetings, time, side="right")))
        return self._moment(block, time)

    @property
    def done(self) -> float:
        """When the last step of all ended, as far as it is known by now: infinite while training goes on."""
        block = self._block
        over = self._ended and block is not None and self._index == len(block.meetings)
        return self._met + float(self._tail.max()) if over else FOREVER

    def _take(self, block: _Block, until: int) -> None:
        """Count the steps of a block that met before an index."""
        start, self._index = self._index, max(self._index, until)
        if until <= start:
            return
        for part in (slice(start, until - 1), slice(until - 1, until)):
            # A step that has not ended on a rank is not in its totals. What would be subtracted again could leave a
            # rounding error, which Prometheus takes for a counter that was reset.
            self._seconds_before = self._seconds.copy()
            self._add(block, part)
        part = slice(start, until)
        counted = block.counted[part]
        if counted.any():
            self._floors.append((until - start, block.waits[part][block.counted[part]].min(axis=0)))
            while sum(size for size, _ in self._floors) - self._floors[0][0] >= RECENT_STEPS:
                self._floors.popleft()
        if until >= 2:  # noqa: PLR2004  # the newest step and the one before
            self._earlier_end = block.meetings[until - 2] + block.tails[until - 2]
        elif self._number:
            self._earlier_end = self._met + self._tail
        self._number += until - start
        self._met, self._tail = float(block.meetings[until - 1]), block.tails[until - 1]
        pauses = [(phase, seconds) for step, phase, seconds in block.pauses if step == until - 1]
        self._left = [*pauses, *zip(OWN[TAIL], block.work[TAIL, until - 1], strict=True)]
        self._newest_counts = bool(block.counted[until - 1])

    def _add(self, block: _Block, part: slice) -> None:
        """Add some steps to the totals."""
        counted = block.counted[part].astype(float)
        self._steps += len(counted)
        self._counted += counted.sum()
        if block.fetches.size:
            self._fetched += counted @ block.fetches[part]
        for row, phase in enumerate(OWN):
            self._seconds[phase] += counted @ block.work[row, part]
        self._seconds[Phase.COMMUNICATION] += counted @ block.waits[part]
        for step, phase, seconds in block.pauses:
            if part.start <= step < part.stop:
                self._seconds[phase] += seconds * block.counted[step]

    def _moment(self, block: _Block, time: float) -> Moment:
        """Make the moment out of the totals: the step of the newest meeting may not have ended on all ranks."""
        since, ranks = time - self._met, self._ranks
        left = (since < self._tail) if self._number else np.zeros(ranks, dtype=bool)
        seconds = np.where(left, self._seconds_before, self._seconds)
        counted = self._counted - left * self._newest_counts
        parts = list(self._left)
        if self._index < len(block.meetings):
            parts += zip(OWN[HEAD], block.work[HEAD, self._index], strict=True)
            order = [*(phase for phase, _ in parts), Phase.COMMUNICATION]
        else:
            # Behind the last step, what the script does is other.
            order = [*(phase for phase, _ in parts), Phase.OTHER]
        edges = np.cumsum(np.array([lengths for _, lengths in parts]).reshape(len(parts), ranks), axis=0)
        position = (edges <= since).sum(axis=0)
        began = np.where(position > 0, edges[np.maximum(position - 1, 0), np.arange(ranks)], 0.0)
        inside = (position == len(parts)) & (order[-1] is Phase.COMMUNICATION)
        return Moment(
            steps=self._steps - left,
            counted=counted,
            phase_seconds=seconds,
            fetched_seconds=self._fetched.copy(),
            floor=np.min([floor for _, floor in self._floors], axis=0) if self._floors else np.full(ranks, np.nan),
            last_step=np.where(left, self._earlier_end, self._met + self._tail if self._number else np.nan),
            phase=np.array(order)[position],
            phase_age=since - began,
            sequence=self._number + inside,
            inside=inside,
        )

    def _make(self) -> _Block:
        """Make the next steps."""
        job, random, now = self._job, self._random, self._met
        size = int(np.clip(_BLOCK_SECONDS / job.own, 1, max(1, _BLOCK_SAMPLES // self._ranks)))
        work = self._work(now, size)
        if self._made == 0:
            work[2, 0] += job.compile
        # A share of the step that it makes: transfer = share by (own + transfer).
        share = max([job.transfer, *(fault.share for fault in job.of(Transfer) if fault.at(now))])
        transfer = job.own * share / (1 - share) * np.maximum(0.2, 1 + 0.1 * random.standard_normal(size))
        pauses = self._pauses(now, size)
        tails = work[TAIL].sum(axis=0)
        for step, _, seconds in pauses:
            tails[step] += seconds
        before = np.vstack((self._tail[None, :], tails[:-1]))
        fetches = self._load(now, work, before, transfer) if job.loader else np.zeros((0, 0))
        arrivals = before + work[HEAD].sum(axis=0)
        lengths = arrivals.max(axis=1) + transfer
        meetings = now + np.cumsum(lengths)
        waits = lengths[:, None] - arrivals
        self._hang(now, work, meetings, waits)
        counted = np.arange(self._made, self._made + size) >= job.warmup
        past_end = int(np.searchsorted(meetings, job.end)) + 1
        if past_end <= size and np.isfinite(meetings[past_end - 1]):
            self._ended = True
            size = past_end
        self._made += size
        pauses = [pause for pause in pauses if pause[0] < size]
        return _Block(
            meetings[:size], work[:, :size], waits[:size], fetches[:size], tails[:size], counted[:size], pauses
        )

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
        for roaming in job.of(Roaming):
            if roaming.at(now):
                chosen = random.integers(0, ranks, size)
                work[2:4, np.arange(size), chosen] *= 1 + (roaming.factor - 1) / sum(job.mix[2:4])
        return work

    def _load(self, now: float, work: Array, before: Array, transfer: Array) -> Array:
        """Put the waits for data into ``work``; return how long workers needed for each batch."""
        job = self._job
        assert job.loader is not None
        workers, prefetch, share = job.loader
        size, ranks = work.shape[1:]
        factor = np.full(ranks, share)
        for supply in job.of(Supply):
            if supply.at(now):
                factor[list(supply.ranks) if supply.ranks is not None else slice(None)] = supply.factor
        needed = workers * factor * job.own / (1 - job.transfer)
        fetches = needed * np.maximum(0.1, 1 + 0.3 * self._random.standard_normal((size, ranks)))
        if self._supply is None:
            self._supply = _Queue(workers, workers * prefetch, ranks, now)
        clock, rest = now, work[1 : HEAD.stop].sum(axis=0)
        for step in range(size):
            asks = clock + before[step]
            work[0, step] = self._supply.take(asks, fetches[step]) - asks + 0.002 * job.own
            clock += float((before[step] + work[0, step] + rest[step]).max() + transfer[step])
        return fetches

    def _pauses(self, now: float, size: int) -> list[tuple[int, Phase, Array]]:
        """Return step, phase and seconds by rank of what is done behind some steps."""
        made: list[tuple[int, Phase, Array]] = []
        for number, pause in enumerate(self._job.pauses):
            if now >= self._next_pause[number]:
                seconds = np.zeros(self._ranks)
                seconds[: 1 if pause.alone else None] = pause.seconds * (1 + 0.1 * self._random.random())
                made.append((size - 1, pause.phase, seconds))
                self._next_pause[number] = now + pause.every
        return made

    def _hang(self, now: float, work: Array, meetings: Array, waits: Array) -> None:
        """Let a fault that holds a rank delay the first meeting behind it, for ever if it does not end."""
        for fault in (*self._job.of(Hang), *self._job.of(Death)):
            if not now <= fault.begin < meetings[-1]:
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
