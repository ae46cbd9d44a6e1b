"""What all ranks lose to the pipeline of a step: copies, the script, collections, checkpoints, compilations, epochs."""

from __future__ import annotations

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Collection, Recompile, Slow
from lab.evaluation.model.job import OWN, Case, Expectation, Pause
from lab.evaluation.scenarios.registry import drawn
from laggard.shared.phases import Phase


def _share(draw: Draw, phase: Phase, share: float) -> Case:
    """Return a case in which a phase takes a share of the step on all ranks."""
    plain, begin = draw.plain, draw.begin()
    part = share / (1 - plain.transfer)
    more = max(0.0, (part - plain.mix[OWN.index(phase)]) / (1 - part))
    slow = Slow(begin=begin, ranks=tuple(range(draw.ranks)), phase=phase, factor=1 + more)
    return Case(draw.job(begin + max(900.0, draw.patience(1 + more)) + 600, faults=(slow,)), facts={"effect": 1 + more})


@drawn(11)
def copy_bound(draw: Draw) -> Case:
    """Copies to the device take long on all ranks."""
    draw.shorten(20.0)
    case = _share(draw, Phase.H2D, draw.between(0.13, 0.45))
    begin = case.job.faults[0].begin
    return Case(
        case.job,
        (Expectation("TrainingCopyBound", (), "h2d", begin),),
        (),
        ("TrainingInputBound", "TrainingHiddenSerialization", "TrainingStraggler"),
        case.facts,
    )


@drawn(11)
def nearly_copy_bound(draw: Draw) -> Case:
    """Copies to the device take up to 8 % of the step."""
    draw.shorten(20.0)
    case = _share(draw, Phase.H2D, draw.between(0.05, 0.08))
    return Case(case.job, near=("TrainingCopyBound",), facts=case.facts)


@drawn(11)
def serialized(draw: Draw) -> Case:
    """The script does much between the phases, on all ranks."""
    draw.shorten(20.0)
    case = _share(draw, Phase.OTHER, draw.between(0.25, 0.6))
    begin = case.job.faults[0].begin
    return Case(
        case.job,
        (Expectation("TrainingHiddenSerialization", (), "other", begin),),
        (),
        ("TrainingInputBound", "TrainingCopyBound", "TrainingGarbageCollection"),
        case.facts,
    )


@drawn(11)
def nearly_serialized(draw: Draw) -> Case:
    """The script does something between the phases, on all ranks: up to 17 % of the step."""
    draw.shorten(20.0)
    case = _share(draw, Phase.OTHER, draw.between(0.1, 0.17))
    return Case(case.job, near=("TrainingHiddenSerialization",), facts=case.facts)


def _collected(draw: Draw, share: float) -> Case:
    """Return a case in which garbage collection makes the run lose a share of its time."""
    draw.calm(0.06)
    draw.shorten(0.4)
    begin, every, together = draw.begin(), int(draw.random.integers(8, 60)), draw.chance(0.4)
    struck = 1 / every if together else 1 - (1 - 1 / every) ** draw.ranks
    fault = Collection(begin=begin, every=every, pause=share / (1 - share) / struck, together=together)
    return Case(draw.job(begin + 1300, faults=(fault,)), facts={"effect": 1 / (1 - share)})


@drawn(12)
def collecting(draw: Draw) -> Case:
    """Garbage collection stops the ranks often."""
    case = _collected(draw, draw.between(0.08, 0.25))
    begin = case.job.faults[0].begin
    # A pause of one rank is a step that takes a multiple.
    return Case(
        case.job,
        (Expectation("TrainingGarbageCollection", begin=begin),),
        ("TrainingLongTail",),
        ("TrainingHiddenSerialization", "TrainingStraggler"),
        case.facts,
    )


@drawn(12)
def hardly_collecting(draw: Draw) -> Case:
    """Garbage collection takes up to 4 % of the time."""
    case = _collected(draw, draw.between(0.01, 0.04))
    return Case(case.job, allowed=("TrainingLongTail",), near=("TrainingGarbageCollection",), facts=case.facts)


def _saving(draw: Draw, share: float) -> Case:
    draw.shorten(5.0)
    every, alone = draw.between(200, 500), draw.chance(0.5)
    pauses = (Pause(Phase.CHECKPOINT, every, share * every, alone),)
    return Case(draw.job(draw.plain.start + 4200, pauses=pauses), facts={"share": share})


@drawn(11)
def slow_saves(draw: Draw) -> Case:
    """Saving takes a good part of the time."""
    case = _saving(draw, draw.between(0.16, 0.32))
    begin = draw.plain.start + draw.plain.startup
    return Case(
        case.job,
        (Expectation("TrainingCheckpointSlow", begin=begin),),
        near=("TrainingStalled", "TrainingCheckpointStale", "TrainingStraggler"),
        facts=case.facts,
    )


@drawn(11)
def quick_saves(draw: Draw) -> Case:
    """Saving takes up to 8 % of the time."""
    case = _saving(draw, draw.between(0.03, 0.08))
    return Case(case.job, near=("TrainingCheckpointSlow", "TrainingCheckpointStale"), facts=case.facts)


@drawn(11)
def saves_that_end(draw: Draw) -> Case:
    """A run that saved every few minutes saves no more."""
    draw.shorten(5.0)
    every = draw.between(150, 320)
    end = draw.plain.start + draw.plain.startup + draw.plain.compile + every * draw.between(4.5, 6)
    pauses = (Pause(Phase.CHECKPOINT, every, draw.between(0.5, 6), draw.chance(0.7), end=end),)
    # The newest one was up to an interval before.
    begin = end + 2 * every
    return Case(
        draw.job(end + 3.6 * every + 700, pauses=pauses),
        (Expectation("TrainingCheckpointStale", (), "checkpoint", begin),),
        near=("TrainingCheckpointSlow", "TrainingStalled"),
    )


@drawn(11)
def a_save_left_out(draw: Draw) -> Case:
    """A run saves every few minutes, and leaves one or two saves out."""
    draw.shorten(5.0)
    every = draw.between(200, 400)
    gap = draw.plain.start + draw.plain.startup + draw.plain.compile + every * draw.between(4.5, 6)
    pauses = (Pause(Phase.CHECKPOINT, every, draw.between(0.5, 6), draw.chance(0.7), gap=(gap, gap + 1.3 * every)),)
    return Case(draw.job(gap + 3.5 * every, pauses=pauses), near=("TrainingCheckpointStale", "TrainingCheckpointSlow"))


def _compiling(draw: Draw, share: float, end: float) -> Case:
    draw.calm(0.1)
    draw.shorten(0.5)
    every = draw.between(15, 50)
    begin = draw.plain.start + draw.plain.startup + draw.plain.compile + 60
    fault = Recompile(begin=begin, end=begin + end, every=every, seconds=share * every)
    return Case(draw.job(draw.plain.start + 3500, faults=(fault,)), facts={"share": share})


@drawn(11)
def recompiling(draw: Draw) -> Case:
    """Shapes that change make the run compile again and again."""
    case = _compiling(draw, draw.between(0.08, 0.3), 1e9)
    begin = case.job.faults[0].begin
    return Case(
        case.job,
        (Expectation("TrainingRecompilationStorm", begin=begin),),
        near=("TrainingLongTail", "TrainingStalled", "TrainingDataImbalance"),
        facts=case.facts,
    )


@drawn(11)
def hardly_recompiling(draw: Draw) -> Case:
    """A run compiles much at its start, or little all the time."""
    little = draw.chance(0.5)
    case = _compiling(draw, draw.between(0.01, 0.03) if little else draw.between(0.1, 0.3), 1e9 if little else 600)
    return Case(case.job, near=("TrainingRecompilationStorm",), facts=case.facts)


def _epochs(draw: Draw, share: float) -> Case:
    draw.calm(0.1)
    draw.shorten(0.5)
    every = draw.between(40, 60)
    return Case(draw.job(draw.plain.start + 4000, epochs=(every, share * every)), facts={"share": share})


@drawn(11)
def slow_epochs(draw: Draw) -> Case:
    """The first batch of each short epoch takes long."""
    case = _epochs(draw, draw.between(0.08, 0.2))
    return Case(
        case.job,
        (Expectation("TrainingEpochStartSlow", begin=draw.plain.start),),
        near=("TrainingInputBound", "TrainingStalled", "TrainingLongTail"),
        facts=case.facts,
    )


@drawn(11)
def quick_epochs(draw: Draw) -> Case:
    """The first batch of each short epoch takes up to 4 % of the time."""
    case = _epochs(draw, draw.between(0.01, 0.038))
    return Case(case.job, near=("TrainingEpochStartSlow",), facts=case.facts)
