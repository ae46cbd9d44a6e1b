"""TrainingInputBound and TrainingCommunicationBound: what slows all ranks alike."""

from __future__ import annotations

from dataclasses import replace

from scenario import MINE, RUNBOOKS, Firing, Play, Scenario, ranks
from slow import make_slow
from world import RUN

FAMILIES = ("process",)
EVERY = 30

INPUT = Firing("TrainingInputBound", phase="data")
COMMUNICATION = Firing("TrainingCommunicationBound", phase="communication")


def _all_wait_for_data(scenario: Scenario, seconds: float) -> None:
    for rank in scenario.world.ranks:
        rank.work["data"] = seconds


def input_bound() -> Scenario:
    """Tells when all ranks wait for data, within ten minutes, and when they no longer do."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.fetch = 0.6  # two workers bring a batch each 300 ms; the rest of a step takes 190
    _all_wait_for_data(scenario, 0.11)
    scenario.after(minutes=5)
    scenario.never()
    scenario.after(minutes=4.5)
    scenario.fires(INPUT)
    scenario.says(
        INPUT,
        title="All ranks of a training run wait for data.",
        summary="Run run-a waits for data: 36.67% of each step, on all ranks.",
        cost="36.67% of each step",
        description="Data takes 36.67% of each step of run run-a, even on the ranks that are supplied "
        "best: they wait for it, or their workers deliver no faster. Meanwhile ranks are compared by their "
        "other phases.",
        recommendation="Give the DataLoader more workers (a rank has 2; 4 would keep up) or a longer "
        "prefetch first; if its workers are busy, move decoding and augmentation out of the step; if they "
        "wait for storage, cache or shard the data set.",
        runbook_url=f"{RUNBOOKS}/TrainingInputBound.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[1].lost = scenario[2].lost = True
    scenario.after(seconds=15)
    scenario.fires(INPUT)
    scenario[1].lost = scenario[2].lost = False
    scenario.after(minutes=1)
    scenario.fires(INPUT)
    _all_wait_for_data(scenario, 0.01)
    for rank in scenario.world.ranks:
        rank.fetch = 0.02
    scenario.after(minutes=4.5)
    scenario.silent()
    return scenario


def input_near_miss() -> Scenario:
    """A data share of 0.18 is tolerated, and so is half an epoch's start of two minutes."""
    scenario = Scenario(ranks(4))
    _all_wait_for_data(scenario, 0.0415)
    scenario.after(minutes=12.5)
    _all_wait_for_data(scenario, 0.5)
    scenario.after(minutes=2)
    _all_wait_for_data(scenario, 0.01)
    scenario.after(minutes=5)
    scenario.never()
    return scenario


def slow_data_on_one_rank() -> Scenario:
    """Slow data on one rank is that rank's fault, among two ranks, four or eight."""
    scenario = Scenario([each for count in (2, 4, 8) for each in ranks(count, run=f"run-{count}")])
    for rank in scenario.world.ranks:
        if rank.rank == 1:
            rank.work["data"] += 0.3
    scenario.after(minutes=13)
    scenario.fires(*(Firing("TrainingStraggler", 1, "data", "host-a", run=f"run-{count}") for count in (2, 4, 8)))
    return scenario


def one_waits_in_the_open() -> Scenario:
    """Where all wait for data the one that waits longest is no straggler; one that is slow in another phase is."""
    scenario = Scenario(ranks(4))
    _all_wait_for_data(scenario, 0.11)
    scenario[1].work["data"] = 0.25
    scenario.after(minutes=12.5)
    scenario.fires(INPUT)
    scenario[2].work["backward"] += 0.15
    scenario.after(minutes=3.75)
    scenario.fires(INPUT, Firing("TrainingStraggler", 2, "backward", "host-a"))
    return scenario


def full_queues() -> Scenario:
    """Where one rank waits and the others' queues are full, their workers tell whether they are as slow."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    for rank in scenario.world.ranks:
        rank.fetch = 0.1
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        # Two workers: a batch every 0.35 s; a step without data takes 0.19 s. Of run-b only one rank is that slow.
        if rank.run == RUN or rank.rank == 1:
            rank.fetch = 0.7
        if rank.rank == 1:
            rank.work["data"] = 0.16
    scenario.after(minutes=13)
    scenario.fires(INPUT, Firing("TrainingStraggler", 1, "data", "host-a", run="run-b"))
    return scenario


def first_stage_reads() -> Scenario:
    """In a pipeline only the first stage reads data; when all of it waits, the run is input-bound."""
    everyone = ranks(8)
    for rank in everyone:
        stage = rank.rank // 4
        rank.peer_group = f"stage-{stage}"
        rank.work["data"] = 0.0 if stage else 0.11
    scenario = Scenario(everyone)
    scenario.after(minutes=12.5)
    scenario.fires(INPUT)
    return scenario


def communication_bound() -> Scenario:
    """Tells when the transfer takes a good part of each step on every rank, and when it no longer does."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario.world.transfer = 0.12
    scenario.after(minutes=5)
    scenario.never()
    scenario.after(minutes=3.75)
    scenario.fires(COMMUNICATION)
    scenario.says(
        COMMUNICATION,
        title="The network is the slowest part of a training run.",
        summary="Run run-a waits for the network: 40% of each step is transfer.",
        cost="40% of each step",
        description="Exposed transfer takes 40% of each step of run run-a, even on the rank that "
        "waits least. The network is the cause, not a slow rank.",
        recommendation="Overlap the transfer with the backward pass and try larger buckets first; then compress "
        "gradients, or place the ranks so that the largest groups share a node or a switch.",
        runbook_url=f"{RUNBOOKS}/TrainingCommunicationBound.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[1].lost = scenario[2].lost = True
    scenario.after(seconds=15)
    scenario.fires(COMMUNICATION)
    scenario[1].lost = scenario[2].lost = False
    scenario.after(minutes=1)
    scenario.fires(COMMUNICATION)
    scenario.world.transfer = 0.02
    scenario.after(minutes=4)
    scenario.silent()
    return scenario


def communication_near_miss() -> Scenario:
    """A transfer of 0.15 of the step is tolerated, one of 0.18 is not."""
    scenario = Scenario(ranks(4))
    scenario.world.transfer = 0.032
    scenario.after(minutes=15)
    scenario.never()
    scenario.world.transfer = 0.04
    scenario.after(minutes=10)
    scenario.fires(COMMUNICATION)
    return scenario


def bubble() -> Scenario:
    """Waits of 0.4 of the step are bubble where ranks have stages, and transfer where they have slices of layers."""
    groups = {
        "run-a": ("pp-0", "pp-1"),
        "run-b": ("tp-0", "tp-1"),
        "run-c": ("pp-0.tp-1", "pp-1.tp-1"),
        "run-d": ("all", "all"),
    }
    everyone = [rank for run in groups for rank in ranks(4, run=run)]
    for rank in everyone:
        rank.peer_group = groups[rank.run][rank.rank // 2]
    scenario = Scenario(everyone)
    scenario.world.transfer = 0.12
    scenario.after(minutes=12)
    scenario.fires(*(replace(COMMUNICATION, run=run) for run in ("run-b", "run-d")))
    scenario.value(
        f"run:training_stages:count{{{MINE}}}",
        {
            f'run:training_stages:count{{training_run="{run}"}}': count
            for run, count in (("run-a", 2), ("run-c", 2), ("run-d", 1))
        },
    )
    return scenario


def roaming_imbalance() -> Scenario:
    """Ranks that wait for another one in each step are not bound by the network, nor is one of them a straggler."""
    scenario = Scenario(ranks(4))
    scenario.world.transfer = 0.08
    for rank in scenario.world.ranks:
        rank.floor = 0.003
    scenario.after(minutes=15)
    scenario.never()
    return scenario


def unmeasured() -> Scenario:
    """Where a rank measures neither data nor communication, neither is judged."""
    scenario = Scenario(ranks(4))
    scenario.world.transfer = 0.2
    _all_wait_for_data(scenario, 0.2)
    scenario[3].signals = {"data": 0, "communication": 0}
    scenario.after(minutes=13)
    scenario.never()
    return scenario


def end_of_the_run() -> Scenario:
    """Both end within two intervals of their run, and stay silent."""
    scenario = Scenario(ranks(4))
    scenario.world.transfer = 0.2
    _all_wait_for_data(scenario, 0.2)
    scenario.after(minutes=12.5)
    scenario.fires(INPUT, COMMUNICATION)
    for rank in scenario.world.ranks:
        rank.finish()
    scenario.after(seconds=30)
    scenario.silent()
    scenario.after(minutes=12.5)
    scenario.silent()
    return scenario


def thresholds_of_a_run() -> Scenario:
    """A run may have thresholds of its own."""
    scenario = Scenario([*ranks(2), *ranks(2, run="run-b")])
    for name in ("input_bound_share", "communication_bound_share"):
        scenario.threshold(name, 0.9)
        scenario.threshold(name, 0.03, run="run-b")
    scenario.after(minutes=12.5)
    scenario.fires(
        Firing("TrainingInputBound", phase="data", run="run-b"),
        Firing("TrainingCommunicationBound", phase="communication", run="run-b"),
    )
    return scenario


def waits_for_an_unseen_rank() -> Scenario:
    """While the metrics of a rank do not arrive, its peers may be waiting for it: the network is not blamed."""
    scenario = Scenario(ranks(4))
    scenario[3].has_metrics = False
    make_slow(scenario[3], 1.5, "forward")
    scenario.after(minutes=14)
    scenario.never()
    return scenario


PLAYS: tuple[Play, ...] = (
    input_bound,
    input_near_miss,
    slow_data_on_one_rank,
    one_waits_in_the_open,
    full_queues,
    first_stage_reads,
    communication_bound,
    waits_for_an_unseen_rank,
    communication_near_miss,
    bubble,
    roaming_imbalance,
    unmeasured,
    end_of_the_run,
    thresholds_of_a_run,
)
