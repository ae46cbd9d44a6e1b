"""How often ``laggard gate`` is right: pairs of simulated runs that are equal, and pairs of which one is 5 % slower.

python -m lab.evaluation.gate --pairs 200 --json gate.json --document docs/gate.md

Noise is what real runs have: it is correlated from step to step, common to all phases and of each phase alone, one step
in a hundred is much longer, every 60th step saves a checkpoint, and two runs of the same code differ by half a percent.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lab.printing import between
from lab.printing import table as printed
from laggard.shared.metrics import RECENT_STEPS
from laggard_cli.gate.measured import Array, Measured
from laggard_cli.gate.verdict import Outcome, judge

LIMIT = 0.05
#: Shares of the step.
_SHARES = {
    "data": 0.1, "h2d": 0.02, "forward": 0.28, "backward": 0.45, "optimizer": 0.05, "communication": 0.08, "other": 0.02
}  # fmt: skip
_STEP_SECONDS = 0.2
#: Share of the variance that all phases have in common.
_COMMON = 0.7
_LONG_SHARE, _LONG_MOST = 0.01, 2.0
_CHECKPOINT_STEPS, _CHECKPOINT_SECONDS = 60, 1.0
_BETWEEN_RUNS = 0.005
#: What is slower, by turns: everything, or one phase that takes it all.
_SLOWED = (tuple(_SHARES), ("backward",), ("data",))

#: Coefficients of variation of the step, and how much of a deviation is left in the next step.
NOISE = (0.02, 0.05, 0.1, 0.2)
DECAY = (0.0, 0.6, 0.9)
#: Shares of the steps that pause, and by how many steps; at this noise.
PAUSES = ((0.05, 1.0), (0.02, 3.0), (0.01, 10.0))
PAUSED_NOISE = 0.05
#: Steps that are simulated at once.
_AT_ONCE = 128
_FOUND = 0.95


@dataclass(frozen=True)
class Cell:
    """What became of pairs of one kind."""

    noise: float
    decay: float
    steps: int
    needed: int
    """What the gate says that it needs; the median."""
    equal: dict[str, int]
    slow: dict[str, int]


@dataclass(frozen=True)
class Paused:
    """What became of pairs with pauses of one kind: in such a share of the steps, by so many steps longer."""

    share: float
    longer: float
    steps: int
    both: dict[str, int]
    one: dict[str, int]


def simulate(  # noqa: PLR0917 - what a run is like
    chance: np.random.Generator,
    steps: int,
    noise: float,
    decay: float,
    slow: tuple[str, ...] = (),
    pauses: tuple[float, float] = (0.0, 0.0),
) -> Measured:
    """Return a run.

    Args:
        chance: where it comes from.
        steps: how many there are.
        noise: coefficient of variation of a step, without what is rare.
        decay: correlation of a step with the next; the correlation time is (1 + decay) / (1 - decay) steps.
        slow: phases that together take 5 % of the step longer.
        pauses: share of the steps that are longer, and by how many steps.
    """
    waves = _correlated(chance, 1 + len(_SHARES), steps, decay)
    own = np.sqrt((1 - _COMMON) / sum(share**2 for share in _SHARES.values()))
    base = _STEP_SECONDS * (1 + _BETWEEN_RUNS * chance.standard_normal())
    slowed = sum(_SHARES[phase] for phase in slow)
    phases: dict[str, Array] = {}
    for (phase, share), wave in zip(_SHARES.items(), waves[1:], strict=True):
        seconds = share * (1 + LIMIT / slowed) if phase in slow else share
        phases[phase] = base * seconds * np.exp(noise * (np.sqrt(_COMMON) * waves[0] + own * wave))
    long = (chance.random(steps) < _LONG_SHARE) * chance.random(steps) * _LONG_MOST
    if pauses[0]:
        long += (chance.random(steps) < pauses[0]) * pauses[1]
    phases["other"] += base * long
    step = np.sum(list(phases.values()), axis=0)
    phases["checkpoint"] = np.zeros(steps)
    phases["checkpoint"][chance.integers(_CHECKPOINT_STEPS) :: _CHECKPOINT_STEPS] = _CHECKPOINT_SECONDS
    return Measured("", "run", 8, "step", step, phases, {"steps": step + phases["checkpoint"]}, {})


def _correlated(chance: np.random.Generator, series: int, steps: int, decay: float) -> Array:
    """Return series of normal deviates, each of which keeps so much of the one before."""
    waves = chance.standard_normal((steps, series))
    waves[1:] *= np.sqrt(1 - decay**2)
    # What is left of each step of a block in each later one; and of the step before the block.
    later = np.arange(_AT_ONCE)[:, None] - np.arange(_AT_ONCE)
    kept = np.where(later >= 0, decay ** np.maximum(later, 0), 0.0)
    before = np.zeros(series)
    for begin in range(0, steps, _AT_ONCE):
        block = waves[begin : begin + _AT_ONCE]
        size = len(block)
        block[:] = kept[:size, :size] @ block + decay ** np.arange(1, size + 1)[:, None] * before
        before = block[-1]
    return waves.T


def cell(pairs: int, steps: int, noise: float, decay: float, seed: int = 0) -> Cell:
    """Judge pairs of one kind."""
    equal, slow, needed = Counter[str](), Counter[str](), list[int]()
    for pair in range(pairs):
        chance = np.random.default_rng((seed, pair, steps, round(1000 * noise), round(1000 * decay)))
        baseline, same = (simulate(chance, steps, noise, decay) for _ in range(2))
        verdict = judge(baseline, same, LIMIT)
        equal[verdict.outcome.value] += 1
        needed.append(verdict.needed)
        slower = simulate(chance, steps, noise, decay, _SLOWED[pair % len(_SLOWED)])
        slow[judge(baseline, slower, LIMIT).outcome.value] += 1
    return Cell(noise, decay, steps, int(np.median(needed)), dict(equal), dict(slow))


def until_found(kind: tuple[int, float, float]) -> list[Cell]:
    """For one kind of noise judge pairs of 256 steps, and of twice as many until 95 % of the slower runs are found."""
    pairs, noise, decay = kind
    found: list[Cell] = []
    while not found or found[-1].slow.get(Outcome.FAIL.value, 0) < _FOUND * pairs:
        found.append(cell(pairs, RECENT_STEPS * 2 ** len(found), noise, decay))
    return found


def pauses_until_found(kind: tuple[int, float, float]) -> list[Paused]:
    """For pauses in few steps judge pairs that both have them, and pairs of which one has, until 95 % are found."""
    pairs, share, longer = kind
    pauses = share, longer
    found: list[Paused] = []
    while not found or found[-1].one.get(Outcome.FAIL.value, 0) < _FOUND * pairs:
        # What the instrumentation keeps, and a recording has without ado; then more.
        steps, both, alone = RECENT_STEPS * 2 ** len(found), Counter[str](), Counter[str]()
        for pair in range(pairs):
            chance = np.random.default_rng((1, pair, steps, *(round(1000 * number) for number in pauses)))
            without, one, two = (
                simulate(chance, steps, PAUSED_NOISE, 0.0, pauses=each) for each in ((0.0, 0.0), pauses, pauses)
            )
            both[judge(one, two, LIMIT).outcome.value] += 1
            alone[judge(without, one, LIMIT).outcome.value] += 1
        found.append(Paused(share, longer, steps, dict(both), dict(alone)))
        print(found[-1], file=sys.stderr, flush=True)
    return found


def pauses_table(found: list[Paused], pairs: int) -> str:
    """Return the result for pauses as Markdown."""
    columns = (
        "steps that are longer", "by", "mean", "steps", "both have them: false failure", "one has them: found",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for each in found:
        failed, caught = (100 * said.get(Outcome.FAIL.value, 0) / pairs for said in (each.both, each.one))
        more = 100 * each.share * each.longer
        cells = (f"1 in {1 / each.share:.0f}", f"{each.longer:g} steps", f"+{more:.0f} %", f"{each.steps}")
        rows.append((*cells, f"{failed:.3g} %", f"{caught:.3g} %"))
    return printed(columns, rows, align="r")


#: Between these lines of a document stand the figures.
BEGIN, END = "<!-- figures: made by python -m lab.evaluation.gate --document -->", "<!-- end of figures -->"


def table(found: list[Cell], pairs: int) -> str:
    """Return the result as Markdown."""
    heading = ["noise", "correlation time", "steps", "needed", "equal: pass", "false failure", "not decided"]
    heading += ["5 % slower: found", "pass", "not decided"]
    rows: list[list[str]] = []
    outcomes = (Outcome.PASS.value, Outcome.FAIL.value, Outcome.UNDECIDED.value)
    for each in found:
        passed, failed, undecided = (each.equal.get(outcome, 0) / pairs for outcome in outcomes)
        missed, caught, open_ = (each.slow.get(outcome, 0) / pairs for outcome in outcomes)
        shares = [f"{100 * share:.3g} %" for share in (passed, failed, undecided, caught, missed, open_)]
        time = (1 + each.decay) / (1 - each.decay)
        rows.append([f"{100 * each.noise:.0f} %", f"{time:.0f}", f"{each.steps}", f"{each.needed}", *shares])
    false = sum(each.equal.get(Outcome.FAIL.value, 0) for each in found)
    worst = max(each.equal.get(Outcome.FAIL.value, 0) for each in found) / pairs
    all_pairs = pairs * len(found)
    said = f"False failures: {false} of {all_pairs} pairs of equal runs, at most {100 * worst:.3g} % in a row."
    return "\n\n".join((printed(heading, rows, align="r"), said))


def main() -> int:
    """Run the evaluation."""
    parser = argparse.ArgumentParser(prog="lab.evaluation.gate", description="How often laggard gate is right.")
    parser.add_argument("--pairs", type=int, default=200, help="pairs of each kind (default 200)")
    parser.add_argument("--workers", type=int, default=2, help="kinds at once")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--pauses", action="store_true", help="only pairs of which one has pauses in few of its steps")
    parser.add_argument("--document", type=Path, metavar="FILE", help="whose figures are to be replaced")
    given = parser.parse_args()
    if given.pauses:
        paused = [each for pauses in PAUSES for each in pauses_until_found((given.pairs, *pauses))]
        print(pauses_table(paused, given.pairs))
        return 0
    found: list[Cell] = []
    with ProcessPoolExecutor(given.workers) as pool:
        for each in pool.map(until_found, [(given.pairs, noise, decay) for noise in NOISE for decay in DECAY]):
            found += each
            print(*each, sep="\n", file=sys.stderr, flush=True)
    text = table(found, given.pairs)
    print(text)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in found]) + "\n", encoding="utf-8")
    if given.document:
        old = given.document.read_text(encoding="utf-8")
        given.document.write_text(between(old, BEGIN, END, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
