"""Steps that differ among themselves: contention, a network in bursts, jitter, long tails."""

from __future__ import annotations

from lab.evaluation.draw import Draw, unsteady_patience
from lab.evaluation.model.faults import Bursts, Fault, Unsteady
from lab.evaluation.model.job import Case, Expectation
from lab.evaluation.scenarios.registry import drawn
from laggard.shared.phases import Phase

_PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OTHER)


def _watched(fault: Fault, step: float) -> float:
    """Return how long to watch after a fault: its verdict, and the 256 steps of its quantiles."""
    return fault.begin + unsteady_patience(step) + 300 * step + 300


def _phase(draw: Draw) -> Phase:
    return _PHASES[draw.random.integers(len(_PHASES))]


@drawn(11, least=4)
def contended(draw: Draw) -> Case:
    """Another process takes the cores of one rank now and then."""
    draw.calm(0.06)
    draw.shorten(1.5)
    (rank,), chance, excess = draw.some(1), draw.between(0.12, 0.4), draw.between(0.45, 1.3)
    fault = Unsteady(begin=draw.begin(), ranks=(rank,), phase=_phase(draw), chance=chance, excess=excess)
    step = draw.plain.own * (1 + chance * excess) * 1.2
    return Case(
        draw.job(_watched(fault, step), faults=(fault,)),
        expected=(Expectation("TrainingContention", (rank,), begin=fault.begin),),
        # It is slow on average, too.
        allowed=("TrainingStraggler",) if chance * excess > 0.06 else (),  # noqa: PLR2004 - less is too little for a verdict
        near=("TrainingNetworkBursty", "TrainingJitter", "TrainingDataImbalance"),
        facts={"effect": 1 + excess},
    )


@drawn(11, least=4)
def hardly_contended(draw: Draw) -> Case:
    """Another process takes the cores of one rank for a moment now and then."""
    draw.calm(0.05)
    draw.shorten(1.5)
    fault = Unsteady(
        begin=draw.begin(), ranks=draw.some(1), phase=_phase(draw), chance=draw.between(0.1, 0.4),
        excess=draw.between(0.04, 0.13),
    )  # fmt: skip
    return Case(
        draw.job(_watched(fault, draw.plain.own * 1.3), faults=(fault,)),
        near=("TrainingContention", "TrainingLongTail"),
    )


@drawn(11)
def bursts(draw: Draw) -> Case:
    """The network is busy with something else now and then."""
    draw.calm(0.06)
    draw.shorten(1.5)
    chance, excess = draw.between(0.08, 0.3), draw.between(0.4, 1.3)
    fault = Bursts(begin=draw.begin(), chance=chance, excess=excess)
    return Case(
        draw.job(_watched(fault, draw.plain.own * (1 + chance * excess) * 1.2), faults=(fault,)),
        expected=(Expectation("TrainingNetworkBursty", begin=fault.begin),),
        near=(
            "TrainingContention",
            "TrainingDataImbalance",
            "TrainingCommunicationBound",
            "TrainingJitter",
            "TrainingLongTail",
            "TrainingStraggler",
        ),
        facts={"effect": 1 + excess},
    )


@drawn(11)
def few_bursts(draw: Draw) -> Case:
    """The network is busy seldom, or hardly."""
    draw.calm(0.06)
    draw.shorten(1.5)
    seldom = draw.chance(0.5)
    chance = draw.between(0.005, 0.02) if seldom else draw.between(0.08, 0.3)
    excess = draw.between(0.4, 1.3) if seldom else draw.between(0.03, 0.1)
    fault = Bursts(begin=draw.begin(), chance=chance, excess=excess)
    return Case(draw.job(_watched(fault, draw.plain.own * 1.3), faults=(fault,)), near=("TrainingNetworkBursty",))


def _jittery(draw: Draw, excess: float) -> Case:
    draw.calm(0.04)
    draw.shorten(1.5)
    chance = draw.between(0.09, 0.3)
    fault = Unsteady(begin=draw.begin(), phase=_phase(draw), chance=chance, excess=excess, together=draw.chance(0.7))
    step = draw.plain.own * (1 + excess)
    horizon = _watched(fault, step) + 900
    return Case(
        draw.job(horizon, faults=(fault,)),
        near=("TrainingContention", "TrainingNetworkBursty"),
        facts={"effect": 1 + excess},
    )


@drawn(12)
def jittery(draw: Draw) -> Case:
    """One step in five or so takes much longer on all ranks."""
    case = _jittery(draw, draw.between(0.55, 1.1))
    (fault,) = case.job.of(Unsteady)
    expected = (Expectation("TrainingJitter", (), fault.phase.label, fault.begin),)
    return Case(case.job, expected, ("TrainingLongTail",), case.near, case.facts)


@drawn(11)
def hardly_jittery(draw: Draw) -> Case:
    """One step in five or so takes a little longer on all ranks."""
    case = _jittery(draw, draw.between(0.08, 0.2))
    return Case(case.job, near=("TrainingJitter", "TrainingLongTail"), facts=case.facts)


def _tail(draw: Draw, chance: float, excess: float) -> tuple[Case, Unsteady]:
    draw.calm(0.08)
    draw.shorten(1.0)
    fault = Unsteady(begin=draw.begin(), phase=_phase(draw), chance=chance, excess=excess, together=draw.chance(0.5))
    horizon = fault.begin + 300 * draw.plain.own * (1 + excess * chance * draw.ranks) + 1200
    return Case(draw.job(horizon, faults=(fault,)), facts={"effect": 1 + excess}), fault


@drawn(12)
def long_tail(draw: Draw) -> Case:
    """One step in forty or fifty takes a multiple of the others."""
    case, fault = _tail(draw, draw.between(0.02, 0.027), draw.between(1.8, 4.0))
    expected = (Expectation("TrainingLongTail", (), fault.phase.label, fault.begin),)
    return Case(
        case.job,
        expected,
        near=("TrainingJitter", "TrainingContention", "TrainingNetworkBursty", "TrainingStraggler"),
        facts=case.facts,
    )


@drawn(11)
def short_tail(draw: Draw) -> Case:
    """One step in forty takes half as long again."""
    case, _ = _tail(draw, draw.between(0.01, 0.025), draw.between(0.3, 0.7))
    return Case(case.job, near=("TrainingLongTail", "TrainingJitter"), facts=case.facts)
