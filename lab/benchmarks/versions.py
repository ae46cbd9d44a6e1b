"""This version of laggard and that of another checkout, side by side: which figure of its cost got worse?

    python -m lab.benchmarks --beside CHECKOUT [--only FIGURE...]

Both versions run on the same machine, the same torch and the same loops, one beside the other in turns, and each beside
the loop without laggard. A round starts fresh processes, because two processes of one version differ by about as much
as two versions do. Rounds go on until the confidence interval of each difference between the versions lies on one side
of what is allowed, 3 % or 1 µs, or until there are as many as a busy machine may need.

Prints a row of a table for each figure as soon as it is known. The exit code is 1 where a figure is worse than allowed,
2 where none is but the interval of one still holds both answers, 0 otherwise.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from lab.benchmarks.children import HERE, Child, Comparison
from lab.benchmarks.spread import interval

#: What a figure may be worse by: a share of the other version's, or a number of microseconds.
ALLOWED_SHARE, ALLOWED_US = 0.03, 1.0
#: Rounds, at least for an interval at 95 % and at most.
ROUNDS, MOST_ROUNDS = 6, 20
#: How often both versions take turns within a round, and how many turns of the loop each has then.
SWAPS, TURNS = 8, 25
MILLISECONDS, LONG_MILLISECONDS = 0.8, 30

Pair = tuple[float, float]
"""A figure of this version and of the other."""


class Judgement(NamedTuple):
    """What the rounds say of a figure."""

    ours: float
    theirs: float
    low: float
    """The least that this version takes more, at 95 % confidence; negative where it takes less."""
    high: float
    """The most that it takes more."""
    allowed: float

    @property
    def answer(self) -> str:
        """``worse`` or ``not worse``, or ``open`` where the interval holds both."""
        if self.high <= self.allowed:
            return "not worse"
        return "worse" if self.low > self.allowed else "open"

    def row(self, figure: str) -> str:
        """Return the figure's row of the table."""
        ratio = " to ".join(f"{1 + end / self.theirs:.3f}" for end in (self.low, self.high)) if self.theirs > 0 else ""
        numbers = f"{self.ours:.2f} | {self.theirs:.2f} | {self.low:+.2f} to {self.high:+.2f} | {ratio}"
        return f"| {figure} | {numbers} | {self.answer} |"


def judge(pairs: Sequence[Pair]) -> Judgement:
    """Judge a figure by one pair of each round, in microseconds."""
    ours, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
    low, high = interval([mine - other for mine, other in pairs])
    return Judgement(ours, theirs, low, high, max(ALLOWED_SHARE * theirs, ALLOWED_US))


def compare(checkout: Path, figures: Iterable[str], *, quick: bool) -> int:
    """Measure, print, and return the exit code."""
    versions = (HERE.parents[1], checkout.resolve())
    for version in versions:
        _prepare(version)
    print("| µs | this version | the other | more by, 95 % | ratio | |", "|---|---|---|---|---|---|", sep="\n")
    answers: list[str] = []
    for name in figures:
        rounds: dict[str, list[Pair]] = defaultdict(list)
        for number in range(1, (1 if quick else MOST_ROUNDS) + 1):
            for figure, pair in MEASURED[name](versions).items():
                rounds[figure].append(pair)
            judged = {figure: judge(pairs) for figure, pairs in rounds.items()}
            # Whoever interrupts a run has what it found so far.
            print(f"round {number}:", *(each.row(figure) for figure, each in judged.items()), sep="\n", file=sys.stderr)
            if number >= ROUNDS and not any(judgement.answer == "open" for judgement in judged.values()):
                break
        for figure, judgement in judged.items():
            print(judgement.row(figure), flush=True)
            answers.append(judgement.answer)
    return 1 if "worse" in answers else 2 if "open" in answers else 0


def _prepare(checkout: Path) -> None:
    """Compile the hot path of a checkout where it is not."""
    if not (checkout / "instrumentation" / "laggard" / "__init__.py").is_file():
        sys.exit(f"--beside must be a checkout of laggard, got {checkout}; try git worktree add PATH COMMIT")
    if not list((checkout / "instrumentation" / "laggard").glob("_sigaction*.so")):
        subprocess.run([sys.executable, checkout / "hatch_build.py"], check=True, stdout=sys.stderr)


def _environment(checkout: Path) -> dict[str, str]:
    """Return the variables with which a process imports the laggard of a checkout."""
    return {"PYTHONPATH": str(checkout / "instrumentation")}


def _in_turns(versions: Sequence[Path], script: str, *arguments: object, alone: int = 0) -> tuple[Pair, Pair]:
    """Return what both versions add to a step, and what the drain takes for each step of a stretch."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(script, *arguments, environment=_environment(version))) for version in versions
        ]
        for child in children:
            child.wait()
        both = [(child, Comparison(("bare", "laggard"))) for child in children]
        for swap in range(SWAPS):
            for child, comparison in both if swap % 2 else reversed(both):
                comparison.measure(child, TURNS)
        drains = [child.ask("alone", alone)["drain_us"] if alone else 0.0 for child in children]
        ours, theirs = (comparison.added("laggard")[0] for _, comparison in both)
        return (ours, theirs), (drains[0], drains[1])


def _style(style: str, alone: int) -> Callable[[Sequence[Path]], dict[str, Pair]]:
    """Return what measures a style of training."""

    def measure(versions: Sequence[Path]) -> dict[str, Pair]:
        variants = ("bare", "laggard")
        added, drain = _in_turns(versions, "beside.py", style, MILLISECONDS, *variants, alone=alone)
        return {f"{style}: added to a step": added, f"{style}: the drain's processor": drain}

    return measure


def _long(versions: Sequence[Path]) -> dict[str, Pair]:
    """Measure a longer step."""
    return {"long: added to a step": _in_turns(versions, "turns.py", LONG_MILLISECONDS)[0]}


def _hot_path(versions: Sequence[Path]) -> dict[str, Pair]:
    """Measure what runs on the training thread, with warm caches."""
    found: list[dict[str, dict[str, float]]] = []
    for version in versions:
        command = [sys.executable, HERE / "hot_path.py", "5"]
        environment = {**os.environ, **_environment(version)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    ours, theirs = found
    return {f"hot path: {level}": (ours[level]["hot"], theirs[level]["hot"]) for level in ours}


#: Every figure that versions are compared by, and what measures one round of it.
MEASURED: dict[str, Callable[[Sequence[Path]], dict[str, Pair]]] = {
    "hot_path": _hot_path,
    "eager": _style("eager", 6000),
    "compiled": _style("compiled", 6000),
    "ddp": _style("ddp", 1500),
    "accumulation": _style("accumulation", 1500),
    "long": _long,
}
