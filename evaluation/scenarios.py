"""The scenarios: what goes wrong, what must be said of it, and for which alerts it is a near miss.

A new alert takes an entry here, of each kind: faults that it must name, and what only looks like one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evaluation.draw import Draw
from evaluation.job import (
    FOREVER,
    Case,
    Death,
    ExporterLost,
    Hang,
    MetricsLost,
    Pause,
    Roaming,
    Slow,
    Supply,
    Transfer,
)
from laggard.conventions import Phase

STRAGGLER, STALLED, MISSING = "TrainingStraggler", "TrainingStalled", "TrainingRankMissing"
INPUT, COMMUNICATION, TELEMETRY = "TrainingInputBound", "TrainingCommunicationBound", "TrainingTelemetryDown"
#: Alerts that are judged. What else fires is listed, by scenario.
ALL = (STRAGGLER, STALLED, MISSING, INPUT, COMMUNICATION, TELEMETRY)

Scenario = Callable[[Draw], Case]
SCENARIOS: dict[str, Scenario] = {}


def scenario(make: Scenario) -> Scenario:
    """Put a scenario into the table, under its function's name."""
    SCENARIOS[make.__name__] = make
    return make


# One slow rank, or some.


def _slow(draw: Draw, phase: Phase | None, count: int = 1, *, named: str | None = None, **more: Any) -> Case:
    """Return a case in which some ranks become slow."""
    factor = draw.between(1.15, 3.0, evenly=False)
    ranks, begin = draw.some(min(count, max(1, draw.ranks // 4))), draw.begin()
    fields = {name: more.pop(name) for name in ("ramp", "duty", "round", "end") if name in more}
    fault = Slow(begin=begin, ranks=ranks, phase=phase, factor=factor, **fields)
    label = named if named is not None else phase.label if phase is not None else "mixed"
    horizon = begin + draw.patience(factor) + 120 + fields.get("ramp", 0)
    more.setdefault("faults", ())
    more["faults"] = (fault, *more["faults"])
    return Case(
        "",
        draw.job(horizon, **more),
        expected=((STRAGGLER, ranks, label, begin, fault.end),),
        near=(INPUT, COMMUNICATION, STALLED),
        facts={"effect": factor},
    )


@scenario
def slow_data(draw: Draw) -> Case:
    """One rank's data takes longer."""
    return _slow(draw, Phase.DATA)


@scenario
def slow_copies(draw: Draw) -> Case:
    """One rank's copies to the device take longer."""
    return _slow(draw, Phase.H2D)


@scenario
def slow_forward(draw: Draw) -> Case:
    """One rank's forward pass takes longer."""
    return _slow(draw, Phase.FORWARD)


@scenario
def slow_backward(draw: Draw) -> Case:
    """One rank's backward pass takes longer."""
    return _slow(draw, Phase.BACKWARD)


@scenario
def slow_optimizer(draw: Draw) -> Case:
    """One rank's optimizer takes longer, behind the meeting of all."""
    return _slow(draw, Phase.OPTIMIZER)


@scenario
def slow_between(draw: Draw) -> Case:
    """One rank logs between the phases."""
    return _slow(draw, Phase.OTHER)


@scenario
def slow_everything(draw: Draw) -> Case:
    """One rank's device is slow in all that it does."""
    return _slow(draw, None)


@scenario
def slow_several(draw: Draw) -> Case:
    """Up to three ranks are slow alike."""
    return _slow(draw, Phase.FORWARD, 3)


@scenario
def slow_growing(draw: Draw) -> Case:
    """A rank becomes slow little by little, as a device that gets hot."""
    return _slow(draw, Phase.BACKWARD, ramp=240.0)


@scenario
def slow_loader(draw: Draw) -> Case:
    """The workers of one rank deliver too slowly, and its queue is empty."""
    factor, (rank,), begin = draw.between(1.3, 3.0, evenly=False), draw.some(1), draw.begin()
    return Case(
        "",
        draw.job(
            begin + draw.patience(factor) + 180,
            loader=(4, 2, draw.between(0.3, 0.8)),
            faults=(Supply(begin=begin, ranks=(rank,), factor=factor),),
        ),
        expected=((STRAGGLER, (rank,), "data", begin, FOREVER),),
        near=(INPUT, COMMUNICATION),
        facts={"effect": factor},
    )


@scenario
def slow_in_a_stage(draw: Draw) -> Case:
    """A rank of a pipeline stage is slow, beside a stage that has more to do by design."""
    return _slow(draw, Phase.FORWARD, stages=(1.0, 1.35) if draw.ranks >= 4 else (1.0,))  # noqa: PLR2004


@scenario
def slow_after_restart(draw: Draw) -> Case:
    """All ranks restart, and one of them is slow from then on."""
    plain = draw.plain
    restart = plain.start + plain.startup + draw.between(120, 300)
    down = draw.between(10, 60)
    factor, (rank,) = draw.between(1.15, 3.0, evenly=False), draw.some(1)
    begin = restart + down + plain.startup + plain.compile
    return Case(
        "",
        draw.job(
            begin + draw.patience(factor) + 180,
            restart=restart,
            down=down,
            moves=bool(draw.random.random() < 0.5),  # noqa: PLR2004
            faults=(Slow(begin=begin, ranks=(rank,), phase=Phase.FORWARD, factor=factor),),
        ),
        expected=((STRAGGLER, (rank,), "forward", begin, FOREVER),),
        allowed=(MISSING, STALLED),
        near=(TELEMETRY,),
        facts={"effect": factor},
    )


@scenario
def slow_and_lost_scrapes(draw: Draw) -> Case:
    """A slow rank while one scrape in thirty fails."""
    return _slow(draw, Phase.FORWARD, lost_scrapes=0.033, push=False)


@scenario
def slow_without_exporter(draw: Draw) -> Case:
    """A slow rank of a job that pushes its metrics and has no node exporter."""
    return _slow(draw, Phase.DATA, push=True, exporter=False)


# Not a slow rank.


def _healthy(draw: Draw, *, near: tuple[str, ...] = ALL, minutes: float = 8, **changes: Any) -> Case:
    return Case("", draw.job(draw.begin() + draw.patience() + 60 * minutes, **changes), near=near)


@scenario
def healthy(draw: Draw) -> Case:
    """Nothing is wrong."""
    return _healthy(draw)


@scenario
def healthy_noisy(draw: Draw) -> Case:
    """Steps vary by 20 %, and ranks by 2 %."""
    return _healthy(draw, cv=0.2, spread=0.02, wander=0.02)


@scenario
def healthy_pauses(draw: Draw) -> Case:
    """Checkpoints of one rank alone and evaluations of all come often."""
    pauses = (
        Pause(Phase.CHECKPOINT, draw.between(120, 240), draw.between(10, 60), alone=True),
        Pause(Phase.EVALUATION, draw.between(180, 400), draw.between(10, 90)),
    )
    return _healthy(draw, pauses=pauses)


@scenario
def healthy_loader(draw: Draw) -> Case:
    """Workers deliver just in time."""
    return _healthy(draw, near=(INPUT, STRAGGLER), loader=(4, 2, draw.between(0.6, 0.85)))


@scenario
def healthy_lost_scrapes(draw: Draw) -> Case:
    """One scrape in thirty fails."""
    return _healthy(draw, lost_scrapes=0.033, push=False)


@scenario
def hardly_slow(draw: Draw) -> Case:
    """A rank is slower by up to 8 %."""
    factor, begin = draw.between(1.02, 1.08), draw.begin()
    return _healthy(
        draw,
        near=(STRAGGLER,),
        faults=(Slow(begin=begin, ranks=draw.some(1), phase=Phase.FORWARD, factor=factor),),
    )


@scenario
def one_hiccup(draw: Draw) -> Case:
    """A rank is slow for less than a minute."""
    draw.shorten(2.0)
    begin, length = draw.begin(), draw.between(5, 50)
    factor = draw.between(1.5, 5.0)
    return _healthy(
        draw,
        near=(STRAGGLER, STALLED, COMMUNICATION),
        faults=(Slow(begin=begin, end=begin + length, ranks=draw.some(1), phase=Phase.DATA, factor=factor),),
    )


@scenario
def roaming(draw: Draw) -> Case:
    """In every step another rank has more to do."""
    return _healthy(
        draw,
        near=(STRAGGLER, COMMUNICATION, INPUT),
        cv=min(draw.plain.cv, 0.1),
        faults=(Roaming(factor=draw.between(1.15, 2.0)),) if draw.ranks >= 8 else (),  # noqa: PLR2004
    )


@scenario
def stages_differ(draw: Draw) -> Case:
    """One pipeline stage has more to do by design, and its ranks no peer that has less."""
    stages = (1.0, draw.between(1.2, 1.6)) if draw.ranks >= 4 else (1.0,)  # noqa: PLR2004
    return _healthy(draw, near=(STRAGGLER,), stages=stages)


@scenario
def unmeasured(draw: Draw) -> Case:
    """A rank is slow, but no rank can measure its waits."""
    return _healthy(
        draw,
        near=(STRAGGLER, COMMUNICATION),
        measures_communication=False,
        faults=(Slow(begin=draw.begin(), ranks=draw.some(1), phase=Phase.FORWARD, factor=1.5),),
    )


# Hangs.


def _hang(draw: Draw, phase: Phase, *, named: bool = True, stopped: bool = False, **changes: Any) -> Case:
    (rank,), begin = draw.some(1), draw.begin()
    limit = max(15.0, 10 * draw.plain.own * (1 + draw.plain.common) / (1 - draw.plain.transfer))
    changes.setdefault("push", False)
    return Case(
        "",
        draw.job(
            begin + draw.plain.own + 1.6 * limit + 300,
            faults=(Hang(begin=begin, ranks=(rank,), phase=phase, stopped=stopped),),
            pauses=(),
            **changes,
        ),
        expected=((STALLED, (rank,) if named else (), phase.label if named else "", begin, FOREVER),),
        near=(MISSING, COMMUNICATION) if stopped else (MISSING, TELEMETRY, COMMUNICATION),
        # A run that stands still has no step to be late in, but what was slow before is said a little longer.
        facts={"limit": limit},
    )


@scenario
def hang_in_data(draw: Draw) -> Case:
    """A rank never gets its batch."""
    return _hang(draw, Phase.DATA)


@scenario
def hang_in_forward(draw: Draw) -> Case:
    """A rank stays in its forward pass."""
    return _hang(draw, Phase.FORWARD)


@scenario
def hang_in_backward(draw: Draw) -> Case:
    """A rank stays in its backward pass."""
    return _hang(draw, Phase.BACKWARD)


@scenario
def hang_stopped(draw: Draw) -> Case:
    """A rank's process is stopped."""
    return _hang(draw, Phase.FORWARD, stopped=True)


@scenario
def hang_of_all(draw: Draw) -> Case:
    """The collective itself does not end: no rank is to blame."""
    return _hang(draw, Phase.COMMUNICATION, named=False)


@scenario
def hang_unseen(draw: Draw) -> Case:
    """A rank hangs where no node exporter tells."""
    case = _hang(draw, Phase.FORWARD, named=False, exporter=False)
    limit = max(600.0, case.facts["limit"])
    job = draw.job(case.job.horizon + limit + 400, faults=case.job.faults, pauses=(), exporter=False, push=False)
    return Case("", job, case.expected, near=(MISSING, TELEMETRY), facts={"limit": limit})


@scenario
def short_pause(draw: Draw) -> Case:
    """A rank stands still for less than the limit, now and then."""
    draw.shorten(20.0)
    begin, own = draw.begin(), draw.plain.own
    limit = max(15.0, 10 * own)
    faults = tuple(
        Hang(begin=begin + number * (5 * limit + 60), end=begin + number * (5 * limit + 60) + 0.7 * limit,
             ranks=draw.some(1), phase=Phase.DATA)
        for number in range(3)
    )  # fmt: skip
    return Case("", draw.job(begin + 3 * (5 * limit + 60), faults=faults, pauses=()), near=(STALLED, MISSING))


@scenario
def long_checkpoint(draw: Draw) -> Case:
    """A checkpoint takes minutes."""
    pauses = (Pause(Phase.CHECKPOINT, draw.between(250, 400), draw.between(60, 400), bool(draw.random.random() < 0.5)),)  # noqa: PLR2004
    return _healthy(draw, near=(STALLED, STRAGGLER, COMMUNICATION), pauses=pauses)


@scenario
def slow_start(draw: Draw) -> Case:
    """The start and the first step take minutes."""
    return _healthy(
        draw, near=(STALLED, MISSING, TELEMETRY), startup=draw.between(120, 500), compile=draw.between(30, 90)
    )


# Ends and deaths.


def _ends(draw: Draw, **changes: Any) -> Case:
    end = draw.begin() + draw.between(30, 200)
    return Case(
        "",
        draw.job(end + 30 * draw.plain.own + 420, end=end, apart=draw.between(5, 60), pauses=(), **changes),
        near=(STALLED, MISSING, TELEMETRY, STRAGGLER),
    )


@scenario
def ends_pulled(draw: Draw) -> Case:
    """A run ends, its ranks up to a minute apart, each scraped."""
    return _ends(draw, push=False)


@scenario
def ends_pushed(draw: Draw) -> Case:
    """A run ends, its ranks up to a minute apart, each pushing."""
    return _ends(draw, push=True)


@scenario
def ends_unseen(draw: Draw) -> Case:
    """A run ends that no node exporter sees."""
    return _ends(draw, push=bool(draw.random.random() < 0.5), exporter=False)  # noqa: PLR2004


def _death(draw: Draw, ranks: tuple[int, ...], *, with_host: bool = False) -> Case:
    begin = draw.begin()
    limit = max(15.0, 10 * draw.plain.own * (1 + draw.plain.common) / (1 - draw.plain.transfer))
    expected: tuple[Any, ...] = ((MISSING, ranks, "", begin, FOREVER),)
    if not with_host:
        expected += ((STALLED, ranks, "", begin, FOREVER),)
    return Case(
        "",
        draw.job(
            begin + draw.plain.own + 1.6 * limit + 300,
            faults=(Death(begin=begin, ranks=ranks, with_host=with_host),),
            pauses=(),
            push=False,
        ),
        expected=expected,
        # Where the host is gone, nobody is left to say which rank the others wait for.
        allowed=(STALLED,) if with_host else (),
        near=(TELEMETRY, COMMUNICATION),
        facts={"limit": limit},
    )


@scenario
def killed(draw: Draw) -> Case:
    """A rank's process is killed, and the others wait."""
    return _death(draw, draw.some(1))


@scenario
def killed_several(draw: Draw) -> Case:
    """Up to three processes are killed at once."""
    return _death(draw, draw.some(min(3, max(1, draw.ranks // 2))))


@scenario
def host_gone(draw: Draw) -> Case:
    """A host is gone with all of its ranks."""
    if draw.ranks <= draw.plain.per_host:
        return _death(draw, draw.some(1), with_host=True)
    first = int(draw.random.integers(draw.ranks // draw.plain.per_host)) * draw.plain.per_host
    return _death(draw, tuple(range(first, first + draw.plain.per_host)), with_host=True)


@scenario
def restart(draw: Draw) -> Case:
    """All ranks restart, on the same hosts or on others."""
    at = draw.begin()
    return Case(
        "",
        draw.job(
            at + draw.patience() + 400,
            restart=at,
            down=draw.between(2, 20),
            moves=bool(draw.random.random() < 0.5),  # noqa: PLR2004
            pauses=(),
        ),
        near=(STALLED, MISSING, TELEMETRY, STRAGGLER),
    )


@scenario
def restart_smaller(draw: Draw) -> Case:
    """All ranks restart, and a quarter of them is left out."""
    at = draw.begin()
    return Case(
        "",
        draw.job(
            at + draw.patience() + 400,
            restart=at,
            down=draw.between(2, 20),
            ranks_after=max(1, draw.ranks - max(1, draw.ranks // 4)),
            pauses=(),
            push=False,
        ),
        near=(MISSING, STALLED, TELEMETRY),
    )


# Patterns of the whole run.


def _input(draw: Draw, **changes: Any) -> Case:
    factor, begin = draw.between(1.35, 3.0, evenly=False), draw.begin()
    return Case(
        "",
        draw.job(
            begin + max(900.0, draw.patience(factor) + 600) + 300,
            loader=(int(draw.random.integers(2, 9)), 2, draw.between(0.3, 0.8)),
            faults=(Supply(begin=begin, factor=factor),),
            **changes,
        ),
        expected=((INPUT, (), "", begin, FOREVER),),
        near=(STRAGGLER, COMMUNICATION),
        facts={"effect": factor},
    )


@scenario
def input_bound(draw: Draw) -> Case:
    """All loaders deliver too slowly."""
    return _input(draw)


@scenario
def input_bound_noisy(draw: Draw) -> Case:
    """All loaders deliver too slowly, and steps vary by 20 %."""
    return _input(draw, cv=0.2, common=0.1)


@scenario
def input_bound_pauses(draw: Draw) -> Case:
    """All loaders deliver too slowly, and checkpoints come often."""
    return _input(draw, pauses=(Pause(Phase.CHECKPOINT, draw.between(180, 300), draw.between(5, 30), alone=True),))


@scenario
def input_bound_pushed(draw: Draw) -> Case:
    """All loaders deliver too slowly, and no node exporter is there."""
    return _input(draw, push=True, exporter=False)


@scenario
def nearly_input_bound(draw: Draw) -> Case:
    """All loaders deliver a little too slowly: up to a tenth of the step."""
    return _healthy(
        draw,
        near=(INPUT, STRAGGLER),
        minutes=14,
        loader=(4, 2, 0.6),
        faults=(Supply(begin=draw.begin(), factor=draw.between(1.0, 1.1)),),
    )


def _communication(draw: Draw, *, slow: float = 1.0, **changes: Any) -> Case:
    """Return a case in which the transfer takes long, beside ranks that make the step so much longer."""
    draw.shorten(4.0)
    share, begin = draw.between(0.27, 0.67), draw.begin()
    step = draw.plain.own * slow / (1 - share)
    # The least wait of 256 steps tells, so as many must have gone by.
    horizon = begin + 256 * step + max(900.0, draw.patience(slow / (1 - share)) + 600) + 300
    return Case(
        "",
        draw.job(horizon, faults=(Transfer(begin=begin, share=share), *changes.pop("faults", ())), **changes),
        expected=((COMMUNICATION, (), "", begin, FOREVER),),
        near=(STRAGGLER, INPUT),
        facts={"effect": 1 / (1 - share)},
    )


@scenario
def communication_bound(draw: Draw) -> Case:
    """The transfer takes long."""
    return _communication(draw)


@scenario
def communication_bound_noisy(draw: Draw) -> Case:
    """The transfer takes long, and steps vary by 20 %."""
    return _communication(draw, cv=0.2)


@scenario
def communication_bound_pauses(draw: Draw) -> Case:
    """The transfer takes long, and checkpoints come often."""
    return _communication(
        draw, pauses=(Pause(Phase.CHECKPOINT, draw.between(180, 300), draw.between(5, 30), alone=True),)
    )


@scenario
def communication_bound_pushed(draw: Draw) -> Case:
    """The transfer takes long, and no node exporter is there."""
    return _communication(draw, push=True, exporter=False)


@scenario
def nearly_communication_bound(draw: Draw) -> Case:
    """The transfer takes up to 15 % of the step."""
    return _healthy(draw, near=(COMMUNICATION,), minutes=14, transfer=draw.between(0.12, 0.15))


# Telemetry.


@scenario
def metrics_lost(draw: Draw) -> Case:
    """The metrics of a rank do not arrive any more."""
    (rank,), begin = draw.some(1), draw.begin()
    return Case(
        "",
        draw.job(begin + 420, faults=(MetricsLost(begin=begin, ranks=(rank,)),)),
        expected=((TELEMETRY, (rank,), "", begin, FOREVER),),
        near=(MISSING, STALLED),
    )


@scenario
def metrics_lost_several(draw: Draw) -> Case:
    """The metrics of some ranks do not arrive any more."""
    ranks, begin = draw.some(4), draw.begin()
    return Case(
        "",
        draw.job(begin + 420, faults=(MetricsLost(begin=begin, ranks=ranks),)),
        expected=((TELEMETRY, ranks, "", begin, FOREVER),),
        near=(MISSING, STALLED, STRAGGLER),
    )


@scenario
def exporter_lost(draw: Draw) -> Case:
    """A node exporter does not answer any more."""
    host = int(draw.random.integers(-(-draw.ranks // draw.plain.per_host))) * draw.plain.per_host
    ranks, begin = tuple(range(host, min(host + draw.plain.per_host, draw.ranks))), draw.begin()
    return Case(
        "",
        draw.job(begin + 480, faults=(ExporterLost(begin=begin, ranks=ranks),)),
        expected=((TELEMETRY, ranks, "", begin, FOREVER),),
        near=(MISSING, STALLED),
    )


@scenario
def short_gap(draw: Draw) -> Case:
    """Metrics of some ranks are gone for a minute and a half, and later those of an exporter."""
    begin, ranks = draw.begin(), draw.some(4)
    faults = (
        MetricsLost(begin=begin, end=begin + 90, ranks=ranks),
        ExporterLost(begin=begin + 240, end=begin + 330, ranks=tuple(range(min(8, draw.ranks)))),
    )
    return Case("", draw.job(begin + 600, faults=faults), near=(TELEMETRY, MISSING, STALLED))


# Several faults at once.


@scenario
def slow_and_communication_bound(draw: Draw) -> Case:
    """The transfer takes long, and one rank is slow as well."""
    (rank,), factor = draw.some(1), draw.between(1.3, 1.8)
    slow = Slow(begin=draw.begin(), ranks=(rank,), phase=Phase.FORWARD, factor=factor)
    case = _communication(draw, slow=factor, faults=(slow,))
    named = (STRAGGLER, (rank,), "forward", max(fault.begin for fault in case.job.faults), FOREVER)
    # The slow rank's own time is part of the step: the share is that of the longer step.
    share = 1 - 1 / case.facts["effect"]
    ratio = share / (1 - share)
    expected = (named, *case.expected) if ratio / (ratio + factor) > 0.25 else (named,)  # noqa: PLR2004
    return Case("", case.job, expected, (COMMUNICATION,), (INPUT, STALLED), {"effect": factor})


@scenario
def slow_then_hang(draw: Draw) -> Case:
    """A rank is slow for a while, and then another one hangs."""
    draw.shorten(3.0)
    factor, ranks, begin = draw.between(1.3, 2.5), draw.some(2), draw.begin()
    slow, stuck = ranks[0], ranks[-1]
    hang = begin + draw.patience(factor) + 60
    limit = max(15.0, 10 * draw.plain.own * factor)
    faults = (
        Slow(begin=begin, end=hang, ranks=(slow,), phase=Phase.FORWARD, factor=factor),
        Hang(begin=hang, ranks=(stuck,), phase=Phase.DATA),
    )
    return Case(
        "",
        draw.job(hang + 1.6 * limit + 300, faults=faults, pauses=(), push=False),
        expected=((STRAGGLER, (slow,), "forward", begin, hang), (STALLED, (stuck,), "data", hang, FOREVER)),
        near=(MISSING, INPUT),
        facts={"limit": limit, "effect": factor},
    )


@scenario
def slow_and_metrics_lost(draw: Draw) -> Case:
    """A rank is slow, and the metrics of another do not arrive."""
    ranks = draw.some(2)
    begin = draw.begin()
    case = _slow(draw, Phase.FORWARD)
    slow = case.expected[0][1]
    lost = tuple(rank for rank in ranks if rank not in slow)[:1] or ((slow[0] + 1) % draw.ranks,)
    job = draw.job(
        max(case.job.horizon, begin + 420), faults=(*case.job.faults, MetricsLost(begin=begin, ranks=lost)), push=False
    )
    # Of two ranks only one is left, which has no peer to be compared with.
    expected = case.expected if draw.ranks > 2 else ()  # noqa: PLR2004
    allowed = () if draw.ranks > 2 else (STRAGGLER,)  # noqa: PLR2004
    return Case("", job, (*expected, (TELEMETRY, lost, "", begin, FOREVER)), allowed, (MISSING,), case.facts)
