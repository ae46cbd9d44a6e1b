"""Nobody vanishes: ranks that live and are not compared are counted and named, with the reason."""

from __future__ import annotations

from laggard.shared.phases import RankState
from scenario import MINE, Play, Scenario, ranks
from slow import make_slow, straggler
from world import RUN

FAMILIES = ("process",)
EVERY = 30

_COUNT, _NAMES = "run_reason:training_ranks_uncompared:count", "run_rank_reason:training_rank_uncompared:info"
_COMPARED = f"count by (training_run) (run_rank:training_step_own_seconds:mean{{{MINE}}})"


def _expect(scenario: Scenario, *named: tuple[int, str], compared: int, run: str = RUN) -> None:
    """Expect that these ranks of a run are named with a reason each, and so many compared."""
    reasons = [reason for _, reason in named]
    scenario.value(
        f'{_NAMES}{{{MINE}, training_run=~"{run}.*"}}',
        {
            f'{_NAMES}{{training_run="{run}", training_rank="{rank}", training_reason="{reason}"}}': 1
            for rank, reason in named
        },
    )
    scenario.value(
        f'{_COUNT}{{{MINE}, training_run=~"{run}.*"}}',
        {
            f'{_COUNT}{{training_run="{run}", training_reason="{reason}"}}': reasons.count(reason)
            for reason in set(reasons)
        },
    )
    scenario.value(
        _COMPARED.replace(MINE, f'{MINE}, training_run=~"{run}.*"'),
        {f'{{training_run="{run}"}}': compared} if compared else {},
    )


def everybody() -> Scenario:
    """Of a run whose ranks are all compared nobody is named, nor once one has ended cleanly."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=6)
    _expect(scenario, compared=4)
    scenario[3].finish()
    scenario.after(minutes=6)
    _expect(scenario, compared=3)
    scenario.never()
    return scenario


def rare_scrapes() -> Scenario:
    """A rank that is scraped each minute is compared over three, and named as slow like any other."""
    scenario = Scenario(ranks(4))
    scenario[3].every = 60
    scenario.after(minutes=12)
    _expect(scenario, compared=4)
    scenario.value(
        f'run:training_window_steps:min{{training_window="short", {MINE}}}',
        {},
    )
    scenario.never()
    make_slow(scenario[3], 1.5, "forward")
    scenario.after(minutes=12)
    scenario.fires(straggler(3, "forward"))
    return scenario


def rarer_scrapes() -> Scenario:
    """A rank that is scraped too rarely for any mean of three minutes is not compared, and that is said."""
    scenario = Scenario(ranks(4))
    scenario[3].every = 240
    scenario.after(minutes=13)
    _expect(scenario, (3, "outside_window"), compared=3)
    return scenario


def all_scraped_rarely() -> Scenario:
    """Where all ranks are scraped each minute, all are compared, over three."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.every = 60
    scenario.after(minutes=10)
    _expect(scenario, compared=4)
    scenario.never()
    return scenario


def reasons() -> Scenario:
    """Each rank that is left out has its reason, and so have those that it keeps from being compared."""
    scenario = Scenario([*ranks(8), *ranks(4, run="run-b"), *ranks(2, run="run-c")])
    scenario[5].has_metrics = False
    scenario[6].state = RankState.STARTING
    scenario[6].has_metrics = False
    # One rank that cannot tell its waiting.
    scenario.world.ranks[9].signals = {"data": 1, "communication": 0}
    # No window holds steps of all ranks, since none of one rank's counts.
    scenario.world.ranks[13].recorded = 0
    scenario.after(minutes=7)
    _expect(scenario, (5, "no_metrics"), (6, "no_metrics"), compared=6)
    _expect(scenario, (1, "no_signal"), compared=4, run="run-b")
    _expect(scenario, (0, "few_steps"), (1, "no_steps"), compared=0, run="run-c")
    return scenario


def few_steps() -> Scenario:
    """Steps of four minutes are too few in half an hour for a verdict: nobody is compared, and that is said."""
    scenario = Scenario(ranks(2))
    for rank in scenario.world.ranks:
        rank.work["forward"] = 240.0
    scenario.after(minutes=14)
    _expect(scenario, (0, "few_steps"), (1, "few_steps"), compared=0)
    return scenario


def too_many_to_name() -> Scenario:
    """Of seventeen ranks that are not compared there is the number, and no name."""
    scenario = Scenario(ranks(20))
    for rank in scenario.world.ranks[3:]:
        rank.every = 240
    for rank in scenario.world.ranks[:3]:
        rank.every = 15
    scenario.after(minutes=13)
    scenario.value(f"{_NAMES}{{{MINE}}}", {})
    scenario.value(f"{_COUNT}{{{MINE}}}", {f'{_COUNT}{{training_run="{RUN}", training_reason="many"}}': 17})
    return scenario


def without_an_exporter() -> Scenario:
    """A rank that no exporter shows is known by its own metrics, and named while they were heard of lately."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario[2].every = 240
    scenario.after(minutes=9)
    scenario.value(_COMPARED, {f'{{training_run="{RUN}"}}': 3})
    scenario.value(
        f"{_NAMES}{{{MINE}}}",
        {f'{_NAMES}{{training_run="{RUN}", training_rank="2", training_reason="outside_window"}}': 1},
    )
    return scenario


PLAYS: tuple[Play, ...] = (
    everybody,
    rare_scrapes,
    rarer_scrapes,
    all_scraped_rarely,
    reasons,
    few_steps,
    too_many_to_name,
    without_an_exporter,
)
