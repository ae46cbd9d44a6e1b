"""TrainingStalled: how long it waits, with and without a node exporter, and what ends it."""

from __future__ import annotations

from hang import died, frozen, resume, stalled, stick
from laggard.shared.phases import Phase, RankState
from scenario import Firing, Play, Scenario, ranks
from world import RUN, Rank

FAMILIES = ("pipeline", "process", "telemetry")


def lost_scrapes() -> Scenario:
    """Goes on through a lost scrape of an exporter, and is not raised by one."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=2)
    scenario[0].exporter_lost = scenario[1].exporter_lost = True
    scenario.after(seconds=15)
    scenario[0].exporter_lost = scenario[1].exporter_lost = False
    scenario.after(minutes=1)
    scenario.never()
    stick(scenario, culprit=2, phase=Phase.DATA)
    scenario.after(minutes=1)
    scenario.fires(stalled(2, "data", "host-b"))
    scenario[2].exporter_lost = scenario[3].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(stalled(2, "data", "host-b"))
    scenario[2].exporter_lost = scenario[3].exporter_lost = False
    scenario.after(seconds=15)
    scenario.fires(stalled(2, "data", "host-b"))
    return scenario


def short_pauses() -> Scenario:
    """Stays silent when progress comes back just within the limit, again and again."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=2)
    for _ in range(4):
        stick(scenario, culprit=1)
        scenario.after(seconds=15)
        resume(scenario)
        scenario.after(seconds=30)
    scenario.never()
    return scenario


def slow_steps() -> Scenario:
    """Waits for ten usual steps: with steps of four seconds, 40 seconds without progress are no stall, 60 are."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.work["backward"] = 3.8
    scenario.after(minutes=5)
    stick(scenario, culprit=0, phase=Phase.OTHER)
    scenario.after(seconds=45)
    scenario.never()
    resume(scenario)
    scenario.after(minutes=1)
    stick(scenario, culprit=0, phase=Phase.DATA)
    scenario.after(seconds=75)
    scenario.fires(stalled(0, "data", "host-a"))
    return scenario


def first_steps() -> Scenario:
    """Before a usual step is measured, the time since the start over the steps so far bounds it from above."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.has_metrics = False
        rank.work["backward"] = 60
    scenario.after(minutes=2.5)
    stick(scenario, culprit=0, phase=Phase.OTHER)
    scenario.after(minutes=5)
    silent_ranks = [Firing("TrainingTelemetryDown", number, host="host-a", source="rank") for number in range(4)]
    scenario.fires(*silent_ranks)
    scenario.after(minutes=15)
    scenario.fires(stalled(0, "other", "host-a"), *silent_ranks)
    return scenario


def checkpoint() -> Scenario:
    """Is patient while a rank saves a checkpoint and the others wait for it, but not for ever."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=2)
    stick(scenario, culprit=0, phase=Phase.CHECKPOINT)
    scenario.after(minutes=29)
    scenario.never()
    scenario.after(minutes=2)
    scenario.fires(stalled(0, "checkpoint", "host-a"))
    return scenario


def dead_in_checkpoint() -> Scenario:
    """Is not patient with a rank that died while it saved."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=2)
    stick(scenario, culprit=0, phase=Phase.CHECKPOINT)
    scenario[0].kill()
    scenario.after(minutes=1.25)
    scenario.fires(
        stalled(0, "checkpoint", "host-a"), died(0, "checkpoint"), Firing("TrainingRankMissing", 0, host="host-a")
    )
    return scenario


def stopped_in_evaluation() -> Scenario:
    """Nor is it patient with a rank that was stopped while it evaluated."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=2)
    stick(scenario, culprit=0, phase=Phase.EVALUATION)
    scenario[0].stopped = True
    scenario.after(minutes=1.25)
    scenario.fires(stalled(0, "evaluation", "host-a"), frozen(0, "stopped", "evaluation"))
    return scenario


def died_while_starting() -> Scenario:
    """A process that died on another host while it started does not make the run seem to start."""
    scenario = Scenario([*ranks(2), Rank(1, "host-b", state=RankState.STARTING, alive=False)])
    scenario.after(minutes=3)
    stick(scenario, culprit=1)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "forward", "host-a"))
    return scenario


def evaluation() -> Scenario:
    """Is patient while all ranks evaluate."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=2)
    scenario.world.training.clear()
    for rank in scenario.world.ranks:
        rank.phase = Phase.EVALUATION
    scenario.after(minutes=25)
    scenario.never()
    resume(scenario)
    scenario.after(minutes=2)
    scenario.never()
    return scenario


def slow_second_start() -> Scenario:
    """Between two incarnations nobody lives for an interval; then the start may take its time, as the first one."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.lost = rank.exporter_lost = True
    scenario.world.training.clear()
    scenario.after(seconds=15)
    for rank in scenario.world.ranks:
        rank.lost = rank.exporter_lost = False
        rank.state = RankState.STARTING
        rank.start = rank.last_edge = scenario.world.now
        rank.pid += 1
    scenario.after(seconds=60)
    scenario.never()
    return scenario


def starting() -> Scenario:
    """Gives a start ten minutes, of which it then says that it takes too long."""
    scenario = Scenario(ranks(4))
    scenario.world.training.clear()
    for rank in scenario.world.ranks:
        rank.state, rank.phase = RankState.STARTING, Phase.OTHER
    scenario.after(minutes=10)
    scenario.never()
    scenario.after(minutes=1)
    scenario.fires(stalled())
    return scenario


def threshold_of_a_run() -> Scenario:
    """A run may have a stall limit of its own."""
    scenario = Scenario(ranks(2))
    scenario.threshold("stall_seconds", 120)
    scenario.after(minutes=3)
    stick(scenario, culprit=1)
    scenario.after(minutes=2)
    scenario.never()
    scenario.after(seconds=45)
    scenario.fires(stalled(1, "forward", "host-a"))
    return scenario


def without_exporter() -> Scenario:
    """Without a node exporter a stall is seen by the step counters, after longer, and without a rank."""
    scenario = Scenario(ranks(2))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=3)
    scenario.world.training.clear()
    scenario.after(minutes=9)
    scenario.never()
    scenario.after(minutes=2)
    scenario.fires(stalled(source="rank"))
    scenario.says(
        stalled(source="rank"),
        title="A training run makes no progress.",
        summary="Run run-a has ended no step for 10m 45s.",
        cost="all of the time",
        description="Run run-a has ended no step for 10m 45s. No node exporter reads the state files of its ranks,"
        " so it is not known which rank the others wait for.",
        recommendation="Take stacks with `laggard stacks --run 'run-a'` on its hosts. Run laggard-exporter there: "
        "the next stall then names its rank.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStalled.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario.world.training.add(RUN)
    scenario.after(seconds=30)
    scenario.silent()
    return scenario


def ended_without_exporter() -> Scenario:
    """A rank that has ended cleanly makes no steps, however long its process goes on."""
    scenario = Scenario(ranks(2))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.state = RankState.FINISHED
    scenario.after(minutes=20)
    scenario.never()
    return scenario


def wrong_clock() -> Scenario:
    """A host whose clock is behind by an hour has no stall while its steps go on."""
    scenario = Scenario(ranks(2))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
        rank.clock = -3600
    scenario.after(minutes=15)
    scenario.never()
    return scenario


def ranks_end_one_by_one() -> Scenario:
    """While some ranks have ended cleanly the others may take their time, unless they wait: for who has ended."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    scenario.after(minutes=3)
    scenario.world.training.clear()
    for rank in scenario.world.ranks:
        if rank.rank == 0:
            rank.finish()
        elif rank.run != RUN:
            rank.enters(Phase.COMMUNICATION, world=(rank.groups["world"][0] + 1, True))
    scenario.after(minutes=5)
    scenario.fires(Firing("TrainingStalled", 0, "forward", "host-a", "exporter", run="run-b"))
    return scenario


def behind_the_last_step() -> Scenario:
    """Where all stand between their phases and nobody waits, a minute may be the script's end, and two are a stall."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    scenario.after(minutes=3)
    scenario.world.training.clear()
    for rank in scenario.world.ranks:
        rank.phase = Phase.OTHER
    # In run-b one of them has begun the next step.
    scenario.world.ranks[5].phase = Phase.FORWARD
    scenario.after(minutes=1)
    at_work = Firing("TrainingStalled", source="exporter", run="run-b")
    scenario.fires(at_work)
    scenario.after(seconds=45)
    scenario.fires(stalled(), at_work)
    return scenario


def steps_that_compile() -> Scenario:
    """A step that compiles anew may take twice as long as such steps did, and no longer."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        # Twice a minute, 15 s each.
        rank.counters["training_steps_excluded_duration_seconds_total{reason=compile}"] = 0.5
        rank.counters["training_steps_excluded_total{reason=compile}"] = 0.03125
        rank.counters["training_compile_recompilations_total"] = 0.03125
    scenario.after(minutes=8)
    for _ in range(4):
        stick(scenario, culprit=1)
        scenario.after(seconds=30)
        resume(scenario)
        scenario.after(seconds=30)
    scenario.never()
    for rank in scenario.world.ranks:
        rank.counters.clear()
    stick(scenario, culprit=1)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "forward", "host-a"))
    return scenario


def end_of_a_stalled_run() -> Scenario:
    """Ends with its run: nothing fires half a minute after the processes are gone, nor later."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=1)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "forward", "host-a"))
    for rank in scenario.world.ranks:
        rank.alive = False
    scenario.after(seconds=30)
    scenario.silent()
    scenario.after(minutes=15)
    scenario.silent()
    return scenario


PLAYS: tuple[Play, ...] = (
    lost_scrapes,
    short_pauses,
    slow_steps,
    first_steps,
    checkpoint,
    dead_in_checkpoint,
    stopped_in_evaluation,
    died_while_starting,
    evaluation,
    slow_second_start,
    starting,
    threshold_of_a_run,
    without_exporter,
    ended_without_exporter,
    wrong_clock,
    ranks_end_one_by_one,
    behind_the_last_step,
    steps_that_compile,
    end_of_a_stalled_run,
)
