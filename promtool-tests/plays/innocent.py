"""TrainingStraggler: what only looks like it."""

from __future__ import annotations

import random

from scenario import Firing, Play, Scenario, ranks
from slow import make_slow, one_of, straggler
from world import WORK

FAMILIES = ("process",)

RUNBOOK = "https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStraggler.md"


def words_behind_a_fault() -> Scenario:
    """A rank that is named and stands out no more is said to have been slow as last, without its times of now."""
    scenario = one_of(4, phase="forward")
    scenario.after(minutes=10)
    make_slow(scenario[3], 1, "forward")
    scenario.after(minutes=1.25)
    scenario.says(
        straggler(3, "forward"),
        title="One rank is slow in every step, and the others wait for it.",
        cost="",
        summary="Rank 3 of run run-a on host-a takes 1.18 times as long as its peers, mostly in forward, and they "
        "wait for it.",
        description="Rank 3 of run run-a on host host-a takes 1.18 times as long as its peers for its own work in a "
        "step, and they wait for it. Most of the difference is in phase forward.",
        recommendation="Compare what the rank computes on with its peers: clocks, temperature, power and throttling, "
        "other processes on it; then the shape of its batches.",
        runbook_url=RUNBOOK,
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def near_miss() -> Scenario:
    """A rank of 1.1 is no straggler; nor is one of 1.15 where steps of a second leave its mean less certain."""
    scenario = one_of(4, 1.1)
    for rank in ranks(4, run="run-b"):
        rank.work = {phase: 5 * seconds for phase, seconds in WORK.items()}
        scenario.world.ranks.append(rank)
    scenario.world.ranks[-1].work["data"] += 0.15 * 5 * sum(WORK.values())
    scenario.world.training.add("run-b")
    scenario.after(minutes=15)
    scenario.never()
    return scenario


def one_hiccup() -> Scenario:
    """One long step is no straggler, however long it was."""
    scenario = Scenario(ranks(4))
    for wait in (0.3, 2.0, 20.0):
        scenario.after(minutes=4)
        scenario[1].work["data"] += wait
        scenario.after(seconds=15)
        scenario[1].work["data"] -= wait
    scenario.after(minutes=4)
    scenario.never()
    return scenario


def short_hiccup() -> Scenario:
    """Slow for three quarters of a minute is no straggler, however slow."""
    scenario = Scenario(ranks(4))
    for excess in (0.1, 0.5, 2.0):
        scenario.after(minutes=4)
        scenario[1].work["data"] += excess
        scenario.after(seconds=45)
        scenario[1].work["data"] -= excess
    scenario.after(minutes=4)
    scenario.never()
    return scenario


def unmeasured_communication() -> Scenario:
    """Where one rank cannot tell waiting from work, no rank of the run is judged."""
    everyone = ranks(4)
    everyone[0].signals = {"data": 1, "communication": 0}
    make_slow(everyone[3], 2.0, "data")
    scenario = Scenario(everyone)
    scenario.after(minutes=8)
    scenario.never()
    return scenario


def silent_about_communication() -> Scenario:
    """A rank that does not say whether it measures communication counts as one that does not."""
    everyone = ranks(4)
    everyone[2].signals = {"data": 1}
    make_slow(everyone[3], 2.0, "data")
    scenario = Scenario(everyone)
    scenario.after(minutes=8)
    scenario.never()
    return scenario


def waits_all_the_same() -> Scenario:
    """A rank with more own time that does not wait less delays nobody: its step is longer, not its peers'."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.measured_wait = 0.02
    make_slow(scenario[1], 1.5, "other")
    scenario.after(minutes=8)
    scenario.never()
    return scenario


def end_of_the_run() -> Scenario:
    """Ends within two intervals of its run, and nothing fires later."""
    scenario = one_of(4)
    scenario.after(minutes=4)
    scenario.fires(straggler(3, "data"))
    for rank in scenario.world.ranks:
        rank.finish()
    scenario.after(seconds=30)
    scenario.silent()
    scenario.after(minutes=5)
    scenario.silent()
    return scenario


def healthy_noise() -> Scenario:
    """Own times that differ from scrape to scrape by 10 % make no verdict."""
    scenario = Scenario(ranks(4))
    chance = random.Random(4)  # noqa: S311 - the same noise in each file that is written
    for _ in range(60):
        for rank in scenario.world.ranks:
            rank.work = {phase: round(seconds * chance.gauss(1, 0.1), 6) for phase, seconds in WORK.items()}
        scenario.after(seconds=15)
    scenario.never()
    return scenario


def threshold_of_a_run() -> Scenario:
    """A run may have a threshold of its own, in either direction."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    scenario.threshold("straggler_score", 1.5)
    scenario.threshold("straggler_score", 1.1, run="run-b")
    scenario.after(minutes=3)
    make_slow(scenario.world.ranks[3], 1.3, "data")
    make_slow(scenario.world.ranks[7], 1.15, "data")
    scenario.after(minutes=5.5)
    scenario.fires(Firing("TrainingStraggler", 3, "data", "host-a", run="run-b"))
    return scenario


PLAYS: tuple[Play, ...] = (
    words_behind_a_fault,
    near_miss,
    one_hiccup,
    short_hiccup,
    unmeasured_communication,
    silent_about_communication,
    waits_all_the_same,
    end_of_the_run,
    healthy_noise,
    threshold_of_a_run,
)
