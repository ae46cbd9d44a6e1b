"""The traces of several ranks of one run, side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from laggard.shared.phases import Phase
from laggard_cli.errors import CommandError
from laggard_cli.kineto.operators import Costs, costs
from laggard_cli.kineto.partition import Steps, partition
from laggard_cli.kineto.trace import OWN_NAME, Times, Trace, read

#: Traces of one run that were asked for at once begin within this many seconds, whatever the hosts' clocks say.
_APART_SECONDS = 60.0
#: A peer group that is a slice of tensor parallelism and no stage.
_SLICE = re.compile(r"tp-\d+")


@dataclass(frozen=True)
class TracedRank:
    """One rank's trace, reduced to its steps."""

    path: Path
    rank: int
    size: int | None
    group: str
    host: str
    began: float
    ended: float
    steps: Steps
    costs: Costs = field(repr=False)

    def mean(self, phase: Phase) -> float:
        """Return the seconds of a phase in the mean step."""
        return float(self.steps.phases[phase].mean())

    @property
    def own(self) -> float:
        """Seconds of the mean step that are this rank's own."""
        return float(self.steps.own.mean())


@dataclass(frozen=True)
class TracedRun:
    """A run as far as it was traced: its ranks by number."""

    name: str
    ranks: tuple[TracedRank, ...]
    #: Ranks of the run, those without a trace included; ``None`` where no file says it.
    size: int | None

    @property
    def steps(self) -> int:
        """Steps of the rank that has the fewest."""
        return min(len(rank.steps) for rank in self.ranks)

    @property
    def step_seconds(self) -> float:
        """The usual rank's mean step."""
        return float(np.median([rank.steps.length.mean() for rank in self.ranks]))

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks of the run that have no trace here."""
        there = {rank.rank for rank in self.ranks}
        return tuple(number for number in range(self.size or 0) if number not in there)

    @property
    def trains(self) -> bool:
        """Whether any step has a backward pass or an update."""
        return any(rank.steps.trains for rank in self.ranks)

    @property
    def communicates(self) -> bool:
        """Whether a collective was seen on every rank."""
        return all(rank.steps.communicates for rank in self.ranks)

    @property
    def groups(self) -> dict[str, list[TracedRank]]:
        """The ranks that do the same work, by the name of their group."""
        found: dict[str, list[TracedRank]] = {}
        for rank in self.ranks:
            found.setdefault(rank.group, []).append(rank)
        return found

    @property
    def unplaced(self) -> bool:
        """Whether ranks send to one another, as stages of a pipeline do, and nothing says which do the same work."""
        return any(rank.steps.sends for rank in self.ranks) and not any(rank.group for rank in self.ranks)

    @property
    def staged(self) -> bool:
        """Whether ranks wait for one another by design, in bubbles: groups are stages, not slices of layers."""
        return self.unplaced or len([group for group in self.groups if not _SLICE.fullmatch(group)]) > 1

    def best_share(self, phase: Phase) -> float:
        """Return the share of the step that a phase takes on the ranks of a group that are best off.

        The group that is worst off counts, as in the rules: only the first stage of a pipeline may read data.
        """
        return max(best_off([rank.mean(phase) for rank in group]) for group in self.groups.values()) / self.step_seconds

    def aligned(self) -> list[Times] | None:
        """Return own time of each rank in the steps that all have; ``None`` where marks do not number the same."""
        # A number that stands twice says of neither step which one it is.
        common = set[int].intersection(*(_single(rank.steps.numbers) for rank in self.ranks))
        if not common:
            return None
        return [
            rank.steps.own[[place for place, number in enumerate(rank.steps.numbers) if number in common]]
            for rank in self.ranks
        ]


def _single(numbers: Sequence[int]) -> set[int]:
    return {number for number, count in Counter(numbers).items() if count == 1 and number >= 0}


def best_off(values: Sequence[float]) -> float:
    """Return the lower quartile of three values and more, else the least."""
    few = 3
    return float(np.quantile(values, 0.25)) if len(values) >= few else min(values)


def read_run(paths: Sequence[Path]) -> TracedRun:
    """Return the run whose ranks wrote these traces, one file each.

    Raises:
        CommandError: a file is no trace, or they are not of different ranks of one run at one time.
    """
    ranks: list[TracedRank] = []
    for path in paths:
        trace = read(path)
        ranks.append(_reduced(_numbered(trace, alone=len(paths) == 1)))
    ranks.sort(key=lambda rank: rank.rank)
    _check(ranks)
    own = OWN_NAME.fullmatch(paths[0].name)
    return TracedRun(unquote(own[1]) if own else paths[0].absolute().parent.name, tuple(ranks), ranks[0].size)


def _numbered(trace: Trace, *, alone: bool) -> Trace:
    if trace.rank is None and not alone:
        raise CommandError(
            f"{trace.path}: does not say its rank: it has no distributedInfo; call the file rank0.json for rank 0"
        )
    return replace(trace, rank=trace.rank or 0)


def _reduced(trace: Trace) -> TracedRank:
    steps = partition(trace)
    return TracedRank(
        path=trace.path,
        rank=trace.rank or 0,
        size=trace.size,
        group=trace.group,
        host=trace.host,
        began=trace.began,
        ended=trace.ended,
        steps=steps,
        costs=costs(trace, steps),
    )


def _check(ranks: Sequence[TracedRank]) -> None:
    twice = [rank for rank, count in Counter(rank.rank for rank in ranks).items() if count > 1]
    if twice:
        both = " and ".join(str(rank.path) for rank in ranks if rank.rank == twice[0])
        raise CommandError(f"rank {twice[0]} is in {both}; give one of them")
    first, last = ranks[0], ranks[-1]
    if last.size is not None and last.rank >= last.size:
        raise CommandError(
            f"{last.path}: distributedInfo.rank must be below its world_size of {last.size}, got {last.rank}"
        )
    for rank in ranks[1:]:
        if rank.size != first.size:
            raise CommandError(
                f"traces of different runs: {first.path} is of {first.size or 'unknown'} ranks, {rank.path} of "
                f"{rank.size or 'unknown'}"
            )
        gap = max(rank.began - first.ended, first.began - rank.ended)
        if gap > _APART_SECONDS:
            raise CommandError(
                f"traces of different runs or times: {first.path} and {rank.path} are {gap:.0f} s apart; give traces "
                "that were taken together"
            )
    devices = {rank.steps.device is not None for rank in ranks}
    if len(devices) > 1:
        without = next(rank for rank in ranks if rank.steps.device is None)
        raise CommandError(
            f"{without.path}: has no kernels, unlike the others; profile the device on all ranks or on none"
        )
