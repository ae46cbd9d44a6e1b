"""TrainingStraggler: who is slow, and in which phase."""

from __future__ import annotations

from hang import stalled, stick
from scenario import MINE, Firing, Play, Scenario, ranks
from slow import make_slow, one_of, straggler
from world import RUN, WORK, Rank

FAMILIES = ("process",)

RUNBOOK = "https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStraggler.md"


def four_ranks() -> Scenario:
    """Names a rank of 1.3 among four within two minutes, with the arithmetic, and ends with the fault."""
    scenario = one_of(4, phase="forward")
    scenario.after(minutes=1)
    scenario.never()
    scenario.after(minutes=1)
    scenario.fires(straggler(3, "forward"))
    scenario.says(
        straggler(3, "forward"),
        title="One rank is slow in every step, and the others wait for it.",
        summary="Rank 3 of run run-a on host-a takes 1.30 times as long as its peers, mostly in forward, and they "
        "wait for it.",
        cost="21.26% of each step",
        description="Rank 3 of run run-a on host host-a takes 1.30 times as long as its peers for its own work in a "
        "step, 234ms against 180ms, and they wait for it. Most of the difference is in phase forward.",
        recommendation="Compare what the rank computes on with its peers: clocks, temperature, power and throttling, "
        "other processes on it; then the shape of its batches.",
        runbook_url=RUNBOOK,
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario.value("count by (training_rank) (run_rank_phase:training_phase_seconds:mean)", {'{training_rank="3"}': 6})
    scenario.after(minutes=10)
    scenario.fires(straggler(3, "forward"))
    make_slow(scenario[3], 1, "forward")
    scenario.after(minutes=3)
    scenario.silent()
    return scenario


def named_once() -> Scenario:
    """Whoever was named early stays named while it stands out, though its excess becomes unsteady, and is a hiccup."""
    scenario = one_of(4, 1.5, phase="forward")
    scenario.after(minutes=1.75)
    for excess in (1.5, 1.5, 1.04, 1.04, 2.6, 1.04, 1.04, 2.6, 2.6, 1.5):
        make_slow(scenario[3], excess, "forward")
        scenario.after(seconds=15)
        scenario.fires(straggler(3, "forward"))
    make_slow(scenario[3], 1, "forward")
    scenario.after(minutes=3)
    scenario.silent()
    return scenario


def soon_after_the_start() -> Scenario:
    """A run that has just begun is not one of few steps: a rank is named as early as later on."""
    scenario = Scenario(ranks(4))
    scenario.world.training.discard(RUN)
    scenario.after(minutes=2)
    scenario.world.training.add(RUN)
    scenario.after(seconds=30)
    make_slow(scenario[3], 1.5, "forward")
    scenario.after(minutes=1)
    scenario.never()
    scenario.after(minutes=1)
    scenario.fires(straggler(3, "forward"))
    return scenario


def two_ranks() -> Scenario:
    """Of two ranks, the slow one is the one that waits less; slow data on one of two does not bind the run."""
    scenario = one_of(2, 2.0)
    scenario.after(minutes=3.75)
    scenario.fires(straggler(1, "data"))
    scenario.after(minutes=10)
    scenario.fires(straggler(1, "data"))
    return scenario


def most_of_the_group() -> Scenario:
    """One of two that is eleven times as slow is most of its group, and has its phase; slow in all it has none."""
    scenario = Scenario(ranks(2))
    scenario.after(minutes=3)
    make_slow(scenario[1], 9.0, "data")
    scenario[1].work["optimizer"] += 2 * sum(WORK.values())
    scenario.after(minutes=10)
    scenario.fires(straggler(1, "data"))
    make_slow(scenario[1], 11.0)
    scenario.after(minutes=8)
    scenario.fires(straggler(1, "mixed"))
    return scenario


def eight_ranks() -> Scenario:
    """Names a rank of 1.3 among eight on two hosts."""
    scenario = one_of(8, phase="optimizer", per_host=4)
    scenario.after(minutes=3.75)
    scenario.fires(straggler(7, "optimizer", "host-b"))
    return scenario


def slightly_slow() -> Scenario:
    """Many steps a minute make a rank of 1.15 certain, within five minutes and a half."""
    scenario = one_of(8, 1.15, phase="backward")
    scenario.after(minutes=5.5)
    scenario.fires(straggler(7, "backward"))
    return scenario


def slightly_slow_for_a_moment() -> Scenario:
    """Which is not told early: of ranks that wander, one needs that much longer for two minutes now and then."""
    scenario = one_of(4, 1.17, phase="backward")
    scenario.after(minutes=2)
    make_slow(scenario[3], 1, "backward")
    scenario.after(minutes=3)
    scenario.never()
    return scenario


def hiccup() -> Scenario:
    """A rank that was far too slow for less than a minute is not named by what means of a minute still hold of it."""
    scenario = one_of(4, 3.7)
    scenario.after(seconds=45)
    # For a third of the next interval.
    make_slow(scenario[3], 1.9, "data")
    scenario.after(seconds=15)
    make_slow(scenario[3], 1, "data")
    scenario.after(minutes=4)
    scenario.never()
    return scenario


def in_turns() -> Scenario:
    """Where another rank is slow in each interval, the one that is in four of them may be by chance."""
    scenario = one_of(4, 2, phase="backward")
    for number in (0, 1, 2, 0):
        make_slow(scenario[number], 2, "backward")
        scenario.after(seconds=15)
        make_slow(scenario[number], 1, "backward")
    make_slow(scenario[3], 1, "backward")
    scenario.after(minutes=3)
    scenario.never()
    return scenario


def checkpoint_of_one_rank() -> Scenario:
    """A slow rank waits while another saves a checkpoint, and is slow nevertheless."""
    scenario = one_of(2, 1.5, phase="forward")
    for _ in range(10):
        scenario[0].work["checkpoint"] = 0.3
        scenario.after(seconds=15)
        scenario[0].work.pop("checkpoint")
        scenario.after(seconds=15)
    scenario.fires(straggler(1, "forward"))
    return scenario


def sixty_four_ranks() -> Scenario:
    """Names a rank of 1.3 among 64, and no other."""
    everyone = ranks(64)
    for rank in everyone:
        rank.has_exporter = False
    scenario = Scenario(everyone)
    scenario.after(minutes=3)
    make_slow(scenario[63], 1.3, "other")
    scenario.after(minutes=3.75)
    scenario.fires(straggler(63, "other", "host-h"))
    return scenario


def beyond_a_thousand() -> Scenario:
    """Of many ranks each tenth makes the reference; who is slow is found among all, compared while it is slow."""
    scenario = Scenario([Rank(number, f"host-{chr(97 + number // 8 - 125)}") for number in range(1000, 1012)])
    compared = "count by (training_rank) (run_rank:training_step_own_seconds:compared)"
    scenario.after(minutes=3)
    scenario.value(compared, {'{training_rank="1005"}': 1})
    make_slow(scenario[1001], 1.3, "forward")
    scenario.after(minutes=2)
    scenario.fires(straggler(1001, "forward"))
    scenario.value(compared, {'{training_rank="1001"}': 1, '{training_rank="1005"}': 1})
    make_slow(scenario[1001], 1, "forward")
    scenario.after(minutes=3)
    scenario.silent()
    scenario.value(compared, {'{training_rank="1005"}': 1})
    return scenario


def slow_in_everything() -> Scenario:
    """A rank that is slow in all phases alike has no phase to blame, though one phase takes most of the time."""
    scenario = Scenario(ranks(8))
    scenario.after(minutes=3)
    make_slow(scenario[5], 1.4)
    scenario.after(minutes=3.75)
    scenario.fires(straggler(5, "mixed"))
    scenario.says(
        straggler(5, "mixed"),
        title="One rank is slow in every step, and the others wait for it.",
        summary="Rank 5 of run run-a on host-a takes 1.40 times as long as its peers, and they wait for it.",
        cost="26.47% of each step",
        description="Rank 5 of run run-a on host host-a takes 1.40 times as long as its peers for its own work in a "
        "step, 252ms against 180ms, and they wait for it. It is slow in more than one phase.",
        recommendation="Check its host and what it computes on (clocks, temperature, power, CPU contention) before its "
        "code. Moving the rank to another host tells the two apart.",
        runbook_url=RUNBOOK,
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def unknown_phases() -> Scenario:
    """Where durations of own phases do not arrive, a slow rank is named, and nothing is claimed about its phases."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.has_phases = False
    scenario.after(minutes=3)
    make_slow(scenario[2], 1.4, "forward")
    scenario.after(minutes=3.75)
    scenario.says(
        straggler(2, "mixed"),
        title="One rank is slow in every step, and the others wait for it.",
        summary="Rank 2 of run run-a on host-a takes 1.40 times as long as its peers, and they wait for it.",
        cost="26.47% of each step",
        description="Rank 2 of run run-a on host host-a takes 1.40 times as long as its peers for its own work in a "
        "step, 252ms against 180ms, and they wait for it. In which phase is not known.",
        recommendation="Check its host and what it computes on (clocks, temperature, power, CPU contention) before its "
        "code. Moving the rank to another host tells the two apart.",
        runbook_url=RUNBOOK,
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def two_phases() -> Scenario:
    """An excess in two phases alike is mixed too."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    make_slow(scenario[0], 1.5, "data", "optimizer")
    scenario.after(minutes=3.75)
    scenario.fires(straggler(0, "mixed"))
    return scenario


def two_culprits() -> Scenario:
    """Two slow ranks of four are both named, each with its phase."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    make_slow(scenario[0], 1.5, "data")
    make_slow(scenario[2], 1.5, "backward")
    scenario.after(minutes=3.75)
    scenario.fires(straggler(0, "data"), straggler(2, "backward"))
    return scenario


def lost_scrape() -> Scenario:
    """Goes on through a lost scrape of the straggler, of a peer, and of the straggler's exporter."""
    scenario = one_of(4)
    scenario.after(minutes=1)
    scenario[3].lost = True
    scenario.after(seconds=15)
    scenario[3].lost = False
    scenario.after(minutes=2.5)
    scenario.fires(straggler(3, "data"))
    for number in (3, 0):
        scenario[number].lost = scenario[number].exporter_lost = True
        scenario.after(seconds=15)
        scenario.fires(straggler(3, "data"))
        scenario[number].lost = scenario[number].exporter_lost = False
        for _ in range(3):
            scenario.after(seconds=15)
            scenario.fires(straggler(3, "data"))
    return scenario


def peer_groups() -> Scenario:
    """Ranks are compared with those that do the same work: a heavier stage is no straggler, a slow rank in it is."""
    everyone = ranks(8)
    for rank in everyone:
        stage = rank.rank // 4
        rank.peer_group = f"stage-{stage}"
        make_slow(rank, 1 + stage, "forward")
    scenario = Scenario(everyone)
    scenario.after(minutes=8)
    scenario.never()
    scenario[6].work["data"] += 0.15
    scenario.after(minutes=3.75)
    scenario.fires(straggler(6, "data"))
    return scenario


def slow_steps() -> Scenario:
    """With steps of eight seconds, means over three minutes decide: within four, or eight for a smaller excess."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    scenario.world.training.add("run-b")
    for rank in scenario.world.ranks:
        rank.work = {phase: 40 * seconds for phase, seconds in WORK.items()}
    scenario.after(minutes=7)
    scenario[2].work["backward"] += 3
    scenario.world.ranks[5].work["backward"] += 1.8
    scenario.after(minutes=2)
    scenario.never()
    scenario.after(minutes=2)
    scenario.fires(straggler(2, "backward"))
    scenario.after(minutes=4)
    scenario.fires(straggler(2, "backward"), Firing("TrainingStraggler", 1, "backward", "host-a", run="run-b"))
    return scenario


def two_places() -> Scenario:
    """A rank that seems to be on two hosts at once has one alert: where it started last, or stands still."""
    scenario = one_of(4)
    place = {"training_run": RUN, "training_rank": "3", "host_name": "host-z"}
    scenario.given("training_rank_start_timestamp_seconds", 5, **place)
    scenario.after(minutes=3.75)
    scenario.fires(straggler(3, "data", "host-z"))
    stick(scenario, culprit=3)
    scenario.after(minutes=1.25)
    scenario.fires(straggler(3, "data", "host-z"), stalled(3, "forward", "host-a"))
    return scenario


def restart() -> Scenario:
    """After an elastic restart into peer groups, the series of the former processes stay beside the new ones."""
    everyone = ranks(4)
    again = [Rank(number, "host-b", peer_group="stage-0", alive=False, has_exporter=False) for number in range(4)]
    scenario = Scenario([*everyone, *again])
    scenario.after(minutes=3)
    make_slow(everyone[1], 1.5, "data")
    scenario.after(minutes=3.75)
    scenario.fires(straggler(1, "data"))
    for old, new in zip(everyone, again, strict=True):
        old.alive = False
        old.lingers = True
        new.alive = new.has_exporter = True
        new.start, new.last_edge = scenario.world.now, scenario.world.now
    scenario.after(minutes=3)
    scenario.silent()
    make_slow(again[3], 1.5, "backward")
    scenario.after(minutes=3.75)
    scenario.fires(straggler(3, "backward", "host-b"))
    return scenario


def queues_that_run_empty() -> Scenario:
    """Where workers are too slow everywhere, nobody is slow, though one rank at a time waits in the open, and long."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.fetch = 0.3
    scenario.after(minutes=4)
    for rank in scenario.world.ranks:
        rank.fetch = 0.9
    for rank in scenario.world.ranks:
        rank.work["data"] = 0.25
        scenario.after(seconds=90)
        rank.work["data"] = WORK["data"]
    scenario.never()
    scenario.value(f"count(run:training_data_limited:info{{{MINE}}})", {"{}": 1})
    return scenario


PLAYS: tuple[Play, ...] = (
    queues_that_run_empty,
    four_ranks,
    named_once,
    soon_after_the_start,
    two_ranks,
    most_of_the_group,
    eight_ranks,
    slightly_slow,
    slightly_slow_for_a_moment,
    hiccup,
    in_turns,
    checkpoint_of_one_rank,
    sixty_four_ranks,
    beyond_a_thousand,
    slow_in_everything,
    unknown_phases,
    two_phases,
    two_culprits,
    lost_scrape,
    peer_groups,
    slow_steps,
    two_places,
    restart,
)
