"""Goodput and losses, which add up."""

from __future__ import annotations

from laggard.shared.phases import RankState
from scenario import MINE, Firing, Play, Scenario, ranks
from world import RUN, WORK, Rank

FAMILIES = ("goodput", "pipeline")

LOST = f"round(run_reason:training_time_lost:ratio{{{MINE}}}, 0.05) > 0"
#: Losses of ranks that do not train, near enough where their beginning is seen some minutes late.
_ABSENT = 'training_reason=~"startup|restart|stall|waiting"'
ABSENT = f"round(run_reason:training_time_lost:ratio{{{_ABSENT}, {MINE}}}, 0.1) > 0"

REPEATED = f'run_reason:training_time_lost:ratio{{training_reason="repeated", {MINE}}}'

#: Losses that are parts of the time in steps.
OF_STEPS = 'training_reason=~"waiting|checkpoint|evaluation"'


def _reason(name: str, run: str = RUN) -> str:
    return f'{{training_reason="{name}", training_run="{run}"}}'


def adds_up() -> Scenario:
    """Of two hours with a start, a restart, a stall and waiting each has its share, and all of them with goodput 1."""
    scenario = Scenario(ranks(4), tick=60)
    world = scenario.world
    world.training.clear()
    for rank in world.ranks:
        rank.state = RankState.STARTING
        # A healthy step of 0.4 s: 0.32 s of work and a transfer of 0.02 s, 0.04 s of saving, 0.02 s of evaluation.
        rank.work = {**WORK, "forward": 0.19, "checkpoint": 0.04, "evaluation": 0.02}
    scenario.after(minutes=30)
    scenario.value(ABSENT, {_reason("startup"): 1})
    world.training.add(RUN)
    for rank in world.ranks:
        rank.state = RankState.RUNNING
    scenario.after(minutes=30)
    # Half of the hour, of which a tenth went to checkpoints and a twentieth to evaluations.
    scenario.value(ABSENT, {_reason("startup"): 0.5})
    scenario.value(f"round(run:training_goodput:ratio{{{MINE}}}, 0.1)", {f'{{training_run="{RUN}"}}': 0.4})
    _whole(scenario)
    # One rank works 0.1 s longer, for which three of four wait: 0.075 of 0.5 s.
    world[1].work["other"] += 0.1
    scenario.after(minutes=61)
    scenario.value(f"round(run:training_slowdown:ratio{{{MINE}}}, 0.01)", {f'{{training_run="{RUN}"}}': 1.21})
    scenario.value(f"round(run:training_waiting_seconds:rate{{{MINE}}}, 0.1)", {f'{{training_run="{RUN}"}}': 0.6})
    scenario.value(LOST, {_reason("waiting"): 0.15, _reason("checkpoint"): 0.1, _reason("evaluation"): 0.05})
    _whole(scenario)
    world[1].work["other"] -= 0.1
    world.training.clear()
    scenario.after(minutes=30)
    for rank in world.ranks:
        rank.alive = False
    scenario.after(minutes=8)
    for rank in world.ranks:
        rank.alive, rank.start = True, world.now
    world.training.add(RUN)
    scenario.after(minutes=22)
    scenario.value(ABSENT, {_reason("stall"): 0.5, _reason("restart"): 0.1})
    _whole(scenario)
    return scenario


def moved() -> Scenario:
    """A run that went on under other addresses in the middle of the hour has trained before that and after it."""
    again = [Rank(number, "host-b", alive=False, has_exporter=False) for number in range(4)]
    scenario = Scenario([*ranks(4), *again], tick=60)
    scenario.after(minutes=40)
    for rank in scenario.world.ranks[:4]:
        rank.alive = rank.has_exporter = False
    for rank in again:
        rank.alive = rank.has_exporter = True
        rank.start = rank.last_edge = scenario.world.now
    scenario.after(minutes=32)
    scenario.value(f"round(run:training_goodput:ratio{{{MINE}}}, 0.1)", {f'{{training_run="{RUN}"}}': 1})
    _whole(scenario)
    return scenario


def sampled() -> Scenario:
    """Of very short steps one in twenty is recorded: what they lose is told of all of them, as where each one is."""
    scenario = Scenario([*ranks(2, run="each"), *ranks(2, run="some")], tick=60)
    for rank in scenario.world.ranks:
        rank.recorded = 0.05 if rank.run == "some" else 1
        # Of 0.5 s one rank waits 0.16 s beyond the transfer, a sixth of the run's time; and 0.1 s goes to saving.
        rank.work = {**WORK, "other": 0.05 if rank.rank else 0.21, "checkpoint": 0.06, "evaluation": 0.04}
    # Until the hour begins after the start.
    scenario.after(minutes=66)
    for run in ("each", "some"):
        scenario.value(
            f'round(run_reason:training_time_lost:ratio{{training_run="{run}", {OF_STEPS}}}, 0.01)',
            {_reason("waiting", run): 0.16, _reason("checkpoint", run): 0.12, _reason("evaluation", run): 0.08},
        )
        scenario.value(
            f'round(run:training_waiting_seconds:rate{{training_run="{run}"}}, 0.01)',
            {f'{{training_run="{run}"}}': 0.32},
        )
        share = f'round(run:training_checkpoint_share:ratio{{training_run="{run}"}}, 0.01)'
        scenario.value(share, {f'{{training_run="{run}"}}': 0.12})
        _whole(scenario, run)
    return scenario


def _whole(scenario: Scenario, run: str = RUN) -> None:
    scenario.value(
        "round(run:training_goodput:ratio + on (training_run) "
        f'sum by (training_run) (run_reason:training_time_lost:ratio{{training_run="{run}"}}), 0.001)',
        {f'{{training_run="{run}"}}': 1},
    )


def low() -> Scenario:
    """Tells of a run that trains for half of its time, an hour after its start, and of no other."""
    scenario = Scenario([*ranks(2, run="low"), *ranks(2, run="fair")], tick=60)
    for rank in scenario.world.ranks:
        rank.has_exporter = rank.has_metrics = False
        rank.work["evaluation"] = 0.2 if rank.run == "low" else 0.1
    scenario.after(minutes=60)
    for rank in scenario.world.ranks:
        rank.has_metrics = True
    scenario.after(minutes=40)
    scenario.never()
    scenario.after(minutes=20)
    scenario.fires(Firing("TrainingGoodputLow", run="low"))
    for rank in scenario.world.ranks:
        rank.work["evaluation"] = 0
    scenario.after(minutes=40)
    scenario.silent()
    return scenario


def repeated() -> Scenario:
    """What a restart threw away is repeated for as long; nothing is after a save, nor where no save was seen."""
    runs = ("lost", "saved", "unknown")
    scenario = Scenario([rank for run in runs for rank in ranks(2, run=run)], tick=60)
    world = scenario.world
    save = "training_checkpoint_last_save_timestamp_seconds"

    def saves(*names: str) -> None:
        for rank in world.ranks:
            if rank.run in names and rank.rank == 0:
                rank.gauges[save] = world.now

    def share(expression: str, expected: dict[str, float]) -> None:
        scenario.value(expression, {_reason("repeated", run): value for run, value in expected.items()})

    scenario.after(minutes=30)
    saves("lost", "saved")
    scenario.after(minutes=15)
    saves("saved")
    scenario.after(minutes=1)
    for rank in world.ranks:
        rank.alive = False
    scenario.after(minutes=2)
    for rank in world.ranks:
        rank.alive, rank.start = True, world.now
        rank.steps, rank.seconds = 0, {}
        rank.gauges.clear()
    scenario.after(minutes=42)
    # A quarter of the hour, and all of it is told; a lost scrape changes nothing.
    share(f"round({REPEATED}, 0.05) > 0", {"lost": 0.25})
    for run in runs:
        _whole(scenario, run)
    world.ranks[0].lost = world.ranks[0].exporter_lost = True
    scenario.after(minutes=1)
    world.ranks[0].lost = world.ranks[0].exporter_lost = False
    scenario.after(minutes=5)
    share(f"round({REPEATED}, 0.05) > 0", {"lost": 0.25})
    # Neither a save of the new process nor the time after it repeats anything.
    saves(*runs)
    scenario.after(minutes=40)
    share(f"{REPEATED} > 0.01", {})
    for run in runs:
        _whole(scenario, run)
    scenario.never()
    return scenario


def young() -> Scenario:
    """A run that is as old as its Prometheus has lost nothing of the hour before it."""
    scenario = Scenario(ranks(2), tick=60)
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=30)
    scenario.value(f"round(run:training_goodput:ratio{{{MINE}}}, 0.1)", {f'{{training_run="{RUN}"}}': 1})
    _whole(scenario)
    scenario.after(minutes=28)
    scenario.never()
    return scenario


PLAYS: tuple[Play, ...] = (adds_up, moved, sampled, young, repeated, low)
