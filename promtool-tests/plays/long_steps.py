"""Runs whose steps take long: how many of them a verdict needs, and for how long a stall is none."""

from __future__ import annotations

from hang import stalled
from scenario import MINE, Play, Scenario, ranks
from slow import straggler
from world import WORK

FAMILIES = ("process",)
EVERY = 60


def slower_steps() -> Scenario:
    """With steps of 20 seconds, means over ten minutes decide, and neither two nor six minutes of them suffice."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.work = {phase: 100 * seconds for phase, seconds in WORK.items()}
    scenario.world.transfer = 2
    scenario.after(minutes=15)
    scenario[1].work["data"] += 9
    scenario.after(minutes=16)
    scenario.never()
    scenario.after(minutes=7)
    scenario.fires(straggler(1, "data"))
    return scenario


def slower_steps_and_lost_scrapes() -> Scenario:
    """What means over ten minutes are made of is recorded rarely: a scrape that is lost just then costs nothing."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.work = {phase: 100 * seconds for phase, seconds in WORK.items()}
    scenario[1].work["data"] += 9
    scenario.world.transfer = 2
    scenario.after(seconds=15)
    for _ in range(28):
        scenario.after(seconds=45)
        for rank in scenario.world.ranks:
            rank.lost = True
        scenario.after(seconds=15)
        for rank in scenario.world.ranks:
            rank.lost = False
    scenario.fires(straggler(1, "data"))
    return scenario


def slowest_steps() -> Scenario:
    """With steps of a minute, means over half an hour decide, and twenty minutes of them do not suffice."""
    scenario = Scenario(ranks(2))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
        rank.work = {phase: 300 * seconds for phase, seconds in WORK.items()}
    scenario.world.transfer = 6
    scenario.after(minutes=30)
    scenario[1].work["data"] += 27
    scenario.after(minutes=40)
    scenario.never()
    scenario.after(minutes=15)
    scenario.fires(straggler(1, "data"))
    return scenario


def few_steps() -> Scenario:
    """With fewer than 16 steps in half an hour there is no verdict."""
    scenario = Scenario(ranks(4), tick=60)
    for rank in scenario.world.ranks:
        rank.work = {phase: 700 * seconds for phase, seconds in WORK.items()}
    scenario[2].work["backward"] *= 3
    scenario.after(minutes=60)
    scenario.value(f"count(run_rank:training_step_own_seconds:mean{{{MINE}}})", {})
    scenario.never()
    return scenario


def without_exporter() -> Scenario:
    """Without a node exporter too, ten usual steps are waited for: of 90 seconds, a quarter of an hour."""
    scenario = Scenario(ranks(2))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
        rank.work["backward"] = 90
    scenario.after(minutes=30)
    scenario.world.training.clear()
    scenario.after(minutes=14)
    scenario.never()
    scenario.after(minutes=3)
    scenario.fires(stalled(source="rank"))
    return scenario


PLAYS: tuple[Play, ...] = (
    slower_steps,
    slower_steps_and_lost_scrapes,
    slowest_steps,
    few_steps,
    without_exporter,
)
