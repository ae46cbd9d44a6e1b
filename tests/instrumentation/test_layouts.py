"""Every layout of ranks: the right rank and phase is named for a delay in any place, and nobody when there is none.

The method is that of the rules: own time against the peers, then the phase with the largest excess. One launch goes
through all configurations and places of a layout.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from laggard.shared import statefile
from tests.support.cases import usual
from tests.support.launch import PROGRAMS, Launcher
from tests.support.measured_once import MeasuredOnce

pytestmark = pytest.mark.timed

SLOW_RANK = 1
EXTRA = 50.0
#: What a busy machine of two processors puts on four ranks.
NOISE = EXTRA / 3
#: Score from which a rank is a culprit.
THRESHOLD = 1.3
#: Place of the delay and the phase in which it belongs.
PLACES = {
    "none": "",
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "host": "other",
}
#: Layout, and the peer group of each of its ranks.
MATRIX = {
    "single": ("",),
    "ddp": ("", "", "", ""),
    "fsdp2": ("", "", "", ""),
    "tensor_parallel": ("tp-0", "tp-1", "tp-0", "tp-1"),
    "pipeline": ("pp-0", "pp-0", "pp-1", "pp-1"),
}
#: Both ways to run and both ways to step, crossed.
CONFIGURATIONS = ("eager-amp", "eager-accumulation", "compiled-amp", "compiled-accumulation")
#: The variants step eagerly too.
USUAL = {
    "single": "compiled-amp",
    "ddp": "compiled-amp",
    "fsdp2": "eager-accumulation",
    "tensor_parallel": "compiled-amp",
    "pipeline": "eager-accumulation",
}
#: Layouts that differ from one of the matrix in one respect, all in one launch: one configuration, fewer places.
VARIANTS = (
    "fsdp2_keep",
    "fsdp1",
    "ddp_static",
    "ddp_unused",
    "ddp_view",
    "ddp_fp16",
    "ddp_hook",
    "ddp_two",
)
VARIANT_CONFIGURATION = "eager-accumulation"
#: They differ in how gradients meet.
VARIANT_PLACES = usual(("none", "data", "backward"), "none", "backward")

#: Phases that the programs time by hand. A pipeline cannot time forward and backward, only both.
TIMED = ("data", "forward", "backward", "optimizer")

Row = dict[str, Any]


@dataclass(frozen=True)
class Rank:
    """One rank's steps: what its stopwatch says of each and what laggard found, in milliseconds."""

    peer_group: str
    steps: list[tuple[Row, Row]]

    def select(self, *segment: str) -> list[tuple[Row, Row]]:
        """Return the steps of a layout, configuration and place, without the first: it meets the segment before."""
        # The end of the last step of all is never seen.
        rows = [(w, s) for w, s in self.steps[:-1] if (w["layout"], w["configuration"], w["place"]) == segment]
        return rows[1:]

    def phases(self, *segment: str) -> dict[str, float]:
        """Return the smallest time of each phase and of own time, and the median wait.

        A busy machine only ever adds to a rank's own work, but it shortens the wait of a rank that it holds up itself.
        """
        steps = [{"own": step["own"], **step["phases"]} for _, step in self.select(*segment)]
        own = {name: min(step.get(name, 0.0) for step in steps) for name in ("own", *filter(None, PLACES.values()))}
        return {**own, "communication": statistics.median(step.get("communication", 0.0) for step in steps)}


def _configurations(layout: str) -> list[str]:
    return usual(CONFIGURATIONS, USUAL[layout])


Training = MeasuredOnce[list[Rank]]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Launches a layout when it is first asked for."""
    return Training(lambda layout: _launch(layout, tmp_path_factory.mktemp(layout)))


def _launch(layout: str, folder: Path) -> list[Rank]:
    slow = 0 if layout == "single" else SLOW_RANK
    size = 1 if layout == "single" else 4
    program: list[str | Path] = [PROGRAMS / "recorded.py", folder, PROGRAMS / "layouts.py"]
    if layout == "variants":
        program += [",".join(VARIANTS), "--configurations", VARIANT_CONFIGURATION]
        program += ["--places", ",".join(VARIANT_PLACES)]
    else:
        program += [layout, "--configurations", ",".join(_configurations(layout))]
    program += ["--slow-rank", str(slow), "--out", folder]
    with Launcher(folder) as launcher:
        launcher.run_ranks(size, *program)
        files = [statefile.read(path) for path in launcher.state_directory.iterdir()]
    groups = {file.facts.rank: file.facts.peer_group for file in files}
    ranks: list[Rank] = []
    for rank in range(size):
        watch: list[Row] = json.loads((folder / f"stopwatch-{rank}.json").read_text())
        lines = (folder / f"steps-{rank}.jsonl").read_text().splitlines()
        steps: list[Row] = [json.loads(line) for line in lines]
        assert len(steps) == len(watch)
        for row in watch:
            row |= {name: value * 1e-6 for name, value in row.items() if isinstance(value, int)}
            row |= {part: _milliseconds(row[part]) for part in ("trained", *TIMED)}
        for step in steps:
            step |= {name: step[name] * 1e-6 for name in ("started", "ended", "own")}
            step["phases"] = {name: value * 1e-6 for name, value in step["phases"].items()}
            step["waits"] = _milliseconds(step["waits"])
        ranks.append(Rank(groups[rank], list(zip(watch, steps, strict=True))))
    return ranks


def _milliseconds(intervals: list[tuple[int, int]]) -> list[tuple[float, float]]:
    return [(begin * 1e-6, end * 1e-6) for begin, end in intervals]


def _length(intervals: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in intervals)


def _inside(step: Row, part: list[tuple[float, float]]) -> float:
    """Return the waiting that a step shows inside of a part."""
    return sum(max(0.0, min(end, e) - max(begin, b)) for begin, end in step["waits"] for b, e in part)


def verdict(ranks: list[dict[str, float]], groups: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return each culprit with the phase at fault."""
    culprits: list[tuple[int, str]] = []
    for rank, phases in enumerate(ranks):
        peers = [other for index, other in enumerate(ranks) if index != rank and groups[index] == groups[rank]]
        # In a group of less than eight the reference is the smallest own time.
        reference = min(peer["own"] for peer in [*peers, phases])
        if phases["own"] < max(THRESHOLD * reference, reference + NOISE):
            continue
        if phases["communication"] < min(peer["communication"] for peer in peers):
            excess = {
                name: phases[name] - statistics.median(peer[name] for peer in peers) for name in PLACES.values() if name
            }
            culprits.append((rank, max(excess, key=excess.__getitem__)))
    return culprits


def numbers(ranks: list[Rank], *segment: str) -> str:
    """Return what is known of a segment's steps, for the message of a failure: a line a rank, milliseconds."""
    lines: list[str] = []
    for rank, known in enumerate(ranks):
        steps = [{"own": step["own"], **step["phases"]} for _, step in known.select(*segment)]
        times = {name: [round(step.get(name, 0.0), 1) for step in steps] for name in sorted({*itertools.chain(*steps)})}
        lines.append(f"rank {rank}: " + ", ".join(f"{name} {values}" for name, values in times.items()))
    return "\n".join(("", *lines))


CELLS = [
    *(
        (layout, configuration, place)
        for layout in MATRIX
        if layout != "single"
        for configuration in _configurations(layout)
        for place in PLACES
    ),
    *((layout, VARIANT_CONFIGURATION, place) for layout in VARIANTS for place in VARIANT_PLACES),
]


@pytest.mark.parametrize(("layout", "configuration", "place"), CELLS)
def test_the_slow_rank_and_its_phase_are_named(layout: str, configuration: str, place: str, training: Training) -> None:
    """Own time names the slow rank and no other, its excess is the delay, in the phase of the delay and in no other."""
    with training.judged(layout if layout in MATRIX else "variants") as ranks:
        _judge(ranks, layout, configuration, place)


def _judge(ranks: list[Rank], layout: str, configuration: str, place: str) -> None:
    groups = MATRIX.get(layout, ("",) * 4)
    phases = [rank.phases(layout, configuration, place) for rank in ranks]
    phase = PLACES[place]
    known = numbers(ranks, layout, configuration, place)
    assert tuple(rank.peer_group for rank in ranks) == groups
    assert verdict(phases, groups) == ([(SLOW_RANK, phase)] if phase else []), known
    own = [rank["own"] for rank in phases]
    others = own[:SLOW_RANK] + own[SLOW_RANK + 1 :]
    assert max(others) < min(others) + NOISE, known
    for name in filter(None, PLACES.values()):
        usual = statistics.median(rank[name] for index, rank in enumerate(phases) if index != SLOW_RANK)
        extra = EXTRA if name == phase else 0.0
        assert phases[SLOW_RANK][name] - usual == pytest.approx(extra, abs=NOISE), f"{name}{known}"


@pytest.mark.parametrize("place", [place for place in PLACES if place != "none"])
@pytest.mark.parametrize("configuration", _configurations("single"))
def test_a_single_process_shows_the_phase_that_moved(configuration: str, place: str, training: Training) -> None:
    """Without peers the delay stands in its phase against the healthy steps of the same process."""
    with training.judged("single") as (rank,):
        healthy = rank.phases("single", configuration, "none")
        slow = rank.phases("single", configuration, place)
        known = "".join(numbers([rank], "single", configuration, shown) for shown in ("none", place))
        for name in filter(None, PLACES.values()):
            extra = EXTRA if name == PLACES[place] else 0.0
            assert slow[name] - healthy[name] == pytest.approx(extra, abs=NOISE), f"{name}{known}"
        assert slow["communication"] == 0


@pytest.mark.parametrize("layout", [*MATRIX, "variants"])
def test_a_stopwatch_agrees(layout: str, training: Training) -> None:
    """Step and phases, with the waiting inside of each, are what the loop measures to 1 %, 1 ms or 0.5 ms a call.

    Two readings of a clock agree where the machine lets the process run from the one to the other. What torch does in
    Python around its engine is in the loop's backward and not in laggard's: with cold caches 0.2 ms a call.
    """
    with training.judged(layout) as ranks:
        for number, rank in enumerate(ranks):
            segments = {(watch["layout"], watch["configuration"], watch["place"]) for watch, _ in rank.steps}
            assert len(segments) > len(PLACES)
            for segment in segments:
                if segment[-1] != "warmup":
                    _assert_agrees(rank.select(*segment), f"rank {number} in {segment}{numbers(ranks, *segment)}")


def _assert_agrees(steps: list[tuple[Row, Row]], known: str) -> None:
    def median(of: Callable[[Row, Row], float]) -> float:
        return statistics.median(of(watch, step) for watch, step in steps)

    def agree(measured: Callable[[Row, Row], float], reported: Callable[[Row, Row], float], calls: int = 1) -> None:
        # The difference of each step, since steps differ more than the clocks do. A busy machine only adds to it.
        differences = [reported(watch, step) - measured(watch, step) for watch, step in steps]
        allowed = max(1.0, 0.5 * calls, 0.01 * median(measured))
        assert min(map(abs, differences)) <= allowed, f"{differences} {known}"

    agree(lambda watch, _: watch["ended"] - watch["started"], lambda _, step: step["ended"] - step["started"])
    for part in TIMED:
        if steps[0][0][part]:
            agree(
                lambda watch, _, part=part: _length(watch[part]),
                lambda watch, step, part=part: step["phases"].get(part, 0.0) + _inside(step, watch[part]),
                len(steps[0][0][part]),
            )
    for watch, step in steps:
        phases = step["phases"]
        assert sum(phases.values()) == pytest.approx(step["ended"] - step["started"], abs=1e-3), known
        # Between forward and backward there is the loss only, and the schedule of a pipeline.
        known_of = phases["forward"] + phases["backward"] + _inside(step, watch["trained"])
        assert -0.1 <= _length(watch["trained"]) - known_of <= phases["other"] + 0.1, known
