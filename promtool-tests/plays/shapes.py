"""What kind of imbalance: a host, a stage, roaming data, contention, a network that comes in bursts."""

from __future__ import annotations

from scenario import MINE, RUNBOOKS, Firing, Play, Scenario, ranks
from slow import make_slow, straggler
from slow import quantile as _quantile
from slow import unsteady as _steps
from world import RUN, TRANSFER, WORK

FAMILIES = ("shape", "process")
EVERY = 30

IMBALANCE = Firing("TrainingDataImbalance")
NETWORK = Firing("TrainingNetworkBursty")

GC = "training_gc_duration_seconds_total{gc_generation=2}"


def _node(host: str) -> Firing:
    return Firing("TrainingNodeSlow", host=host)


def _stage(group: str) -> Firing:
    return Firing("TrainingStageSlow", more=(("training_peer_group", group),))


def slow_host() -> Scenario:
    """Names one of two hosts whose ranks are all slow, beside those ranks, until they are well again."""
    scenario = Scenario(ranks(8, per_host=4))
    scenario.after(minutes=3)
    for number in (4, 5, 6, 7):
        make_slow(scenario[number], 1.3)
    scenario.after(minutes=1.5)
    scenario.never()
    # The ranks' median is between the hosts, so that each rank has a small excess, which takes longer.
    scenario.after(minutes=4.5)
    slow = (_node("host-b"), *(straggler(number, "mixed", "host-b") for number in (4, 5, 6, 7)))
    scenario.fires(*slow)
    scenario.says(
        _node("host-b"),
        title="Most ranks of one host are slow in every step, and the others wait for them.",
        summary="Host host-b slows down run run-a: most of its ranks take 1.30 times as long as those of other hosts.",
        cost="21.26% of each step",
        description="Most ranks of run run-a on host host-b take 1.30 times as long as those of other hosts for "
        "their own work in a step, at least 234ms against 180ms, and the others wait for them.",
        recommendation="Look at what the ranks of this host share: CPU frequency and other processes, memory bandwidth "
        "and NUMA placement, cooling, the local disk, its network links. Replace the host if the fault stays with it.",
        runbook_url=f"{RUNBOOKS}/TrainingNodeSlow.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    for number in (4, 0):
        scenario[number].lost = scenario[number].exporter_lost = True
        scenario.after(seconds=15)
        scenario.fires(*slow)
        scenario[number].lost = scenario[number].exporter_lost = False
        scenario.after(seconds=45)
        scenario.fires(*slow)
    for number in (4, 5, 6, 7):
        make_slow(scenario[number], 1)
    scenario.after(minutes=3.25)
    scenario.silent()
    return scenario


def slow_host_of_four() -> Scenario:
    """Among more hosts the ranks of the slow one are stragglers too; one spared rank does not clear the host."""
    scenario = Scenario(ranks(32))
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=3)
    for number in range(9, 16):
        make_slow(scenario[number], 1.4, "forward")
    scenario.after(minutes=4)
    scenario.fires(_node("host-b"), *(straggler(number, "forward", "host-b") for number in range(9, 16)))
    return scenario


def slow_ranks_on_a_good_host() -> Scenario:
    """Half of a host's ranks are no slow host, nor is its only rank, nor a host of 1.05."""
    scenario = Scenario([*ranks(16), *ranks(4, per_host=1, run="run-b"), *ranks(8, per_host=4, run="run-c")])
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    for rank in scenario.world.ranks[:4]:
        make_slow(rank, 1.4, "data")
    make_slow(scenario.world.ranks[17], 1.4, "data")
    for rank in scenario.world.ranks[20:24]:
        make_slow(rank, 1.05, "data")
    scenario.after(minutes=6)
    scenario.fires(
        *(straggler(number, "data") for number in range(4)),
        Firing("TrainingStraggler", 1, "data", "host-b", run="run-b"),
    )
    return scenario


def _stages(*factors: float) -> Scenario:
    """Return a pipeline of two ranks a stage."""
    scenario = Scenario(ranks(2 * len(factors)))
    for rank in scenario.world.ranks:
        rank.peer_group = f"stage-{rank.rank // 2}"
        make_slow(rank, factors[rank.rank // 2], "forward")
    return scenario


def slow_stage() -> Scenario:
    """Names the stage that takes longer than the others, until the partition is even."""
    scenario = _stages(1, 1.4, 1, 1)
    scenario.after(minutes=4.5)
    scenario.fires(_stage("stage-1"))
    scenario.says(
        _stage("stage-1"),
        title="One pipeline stage, or another peer group, slows down the others.",
        summary="Peer group stage-1 slows down run run-a: it takes 1.40 times as long as the other groups.",
        cost="26.47% of each step",
        description="A typical rank of peer group stage-1 of run run-a takes 1.40 times as long as one of the other "
        "groups for its own work in a step, 252ms against 180ms, and they wait for it.",
        recommendation="Move layers from this group to its neighbours; the first and the last stage also hold the "
        "embedding and the loss. If each group is on hosts of its own, look for a slow host first.",
        runbook_url=f"{RUNBOOKS}/TrainingStageSlow.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[3].lost = scenario[3].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(_stage("stage-1"))
    scenario[3].lost = scenario[3].exporter_lost = False
    scenario.after(minutes=1)
    scenario.fires(_stage("stage-1"))
    for rank in scenario.world.ranks:
        make_slow(rank, 1.1, "forward")
    scenario.after(minutes=3.25)
    scenario.silent()
    return scenario


def steps_at_the_limit_of_a_window() -> Scenario:
    """Where now a minute has sixteen steps and now it has not, stages are compared nevertheless."""
    scenario = _stages(1, 1.4)
    scenario.world.transfer = 0.4
    # Since Prometheus 3 a window of a minute holds three intervals: 16.4 steps and 15.4, in turn.
    for longer in 22 * (12, 15):
        for rank in scenario.world.ranks:
            factor = 1.4 if rank.peer_group == "stage-1" else 1
            rank.work = {phase: longer * factor * seconds for phase, seconds in WORK.items()}
        scenario.after(seconds=15)
    scenario.fires(_stage("stage-1"))
    return scenario


def even_stages() -> Scenario:
    """Stages that differ by 1.15 are even enough; one slow rank makes no slow stage."""
    scenario = _stages(1, 1.15, 1, 1.1)
    scenario.after(minutes=6)
    scenario.never()
    scenario[7].work["data"] += 0.1
    scenario.after(minutes=5)
    scenario.fires(straggler(7, "data"))
    return scenario


def _roaming(scenario: Scenario, excess: float = 0.1) -> None:
    """Make another rank slow in each step: own times agree over a window, and each rank waits in the usual step."""
    for rank in scenario.world.ranks:
        make_slow(rank, 1 + excess / sum(WORK.values()) / len(scenario.world.ranks), "forward")
        _steps(rank, 1.5, TRANSFER + excess, TRANSFER + excess)
        rank.measured_wait = TRANSFER + excess * (1 - 1 / len(scenario.world.ranks))


def roaming() -> Scenario:
    """Tells that each step has a slow rank, a different one each time, until the work is even."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        _steps(rank)
    scenario.after(minutes=4)
    scenario.never()
    _roaming(scenario)
    scenario.after(minutes=5.25)
    scenario.fires(IMBALANCE)
    scenario.says(
        IMBALANCE,
        title="A different rank is slow in each step of a training run.",
        summary="Run run-a loses 33.33% of each step to a slow rank, a different one each time.",
        cost="33.33% of each step",
        description="In the usual step of run run-a, ranks wait for one another for 33.33% of its time, "
        "beyond transfer and bubble. Over minutes, all ranks of a peer group take equally long: no "
        "rank stays slow, a different one is slow each time.",
        recommendation="Give all ranks the same amount of work in each step: batch by tokens instead of samples, "
        "bucket or pack sequences by length, balance experts.",
        runbook_url=f"{RUNBOOKS}/TrainingDataImbalance.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    # Over few steps, one of the ranks may need a little longer than the others.
    make_slow(scenario[3], 1.275, "forward")
    scenario.after(minutes=4)
    scenario.fires(IMBALANCE)
    scenario[2].lost = scenario[2].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(IMBALANCE)
    scenario[2].lost = scenario[2].exporter_lost = False
    scenario.after(minutes=1)
    scenario.fires(IMBALANCE)
    for rank in scenario.world.ranks:
        make_slow(rank, 1, "forward")
        _steps(rank)
        rank.measured_wait = None
    scenario.after(minutes=3)
    scenario.silent()
    return scenario


def roaming_beside_a_slow_stage() -> Scenario:
    """Tells that each step has a slow rank within its stage, and names the stage that is slow in all of them."""
    scenario = Scenario(ranks(8))
    for rank in scenario.world.ranks:
        rank.peer_group = f"stage-{rank.rank // 4}"
        rank.floor = TRANSFER + 0.072 * (rank.peer_group == "stage-0")
    for rank in scenario.world.ranks:
        make_slow(rank, 1.4 if rank.peer_group == "stage-1" else 1, "forward")
        _steps(rank, wait=rank.floor or 0, longest_wait=rank.floor or 0)
    scenario.after(minutes=5)
    scenario.fires(_stage("stage-1"))
    # One of four replicas needs 0.1 s more in each step, in both stages; the slow stage makes all of them wait.
    for rank in scenario.world.ranks:
        rank.work["forward"] += 0.1 / 4
        rank.measured_wait = (rank.floor or 0) + 0.1 * 3 / 4
        _steps(rank, 1.5, (rank.floor or 0) + 0.1, (rank.floor or 0) + 0.1)
    scenario.after(minutes=5.25)
    scenario.fires(_stage("stage-1"), IMBALANCE)
    scenario.value(
        f"round(run:training_imbalance_seconds:median{{{MINE}}}, 0.001)",
        {'{training_run="run-a"}': 0.1},
    )
    return scenario


def bubbles_differ() -> Scenario:
    """A stage with a long bubble beside one with none is no imbalance, nor is a rank alone in its stage that waits."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    for rank in scenario.world.ranks:
        in_front = rank.rank in {0, 1}
        rank.peer_group = f"stage-{rank.rank}" if rank.run == "run-b" else "front" if in_front else "back"
        rank.floor = TRANSFER + 0.1 * in_front
        rank.measured_wait = rank.floor
        wait = rank.floor + 0.1 * (rank.run == "run-b")
        _steps(rank, wait=wait, longest_wait=wait)
    scenario.after(minutes=8)
    scenario.never()
    scenario.value(
        f"run:training_imbalance_seconds:median{{{MINE}}}",
        {'run:training_imbalance_seconds:median{training_run="run-a"}': 0},
    )
    return scenario


def roaming_by_chance() -> Scenario:
    """Where each of few steps has a rank that is far slower, chance makes one of 1.3 for some minutes, not for ten."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.work = {phase: 7 * seconds for phase, seconds in WORK.items()}
        _steps(rank, 1.9)
    scenario.after(minutes=7)
    scenario[3].work["forward"] += 0.3 * 7 * sum(WORK.values())
    scenario.after(minutes=3.75)
    scenario.never()
    scenario.after(minutes=4.25)
    scenario.fires(straggler(3, "forward"))
    return scenario


def roaming_near_miss() -> Scenario:
    """An imbalance of a tenth of the step is tolerated; a straggler's victims wait, but not for one another."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    scenario.after(minutes=3)
    for rank in scenario.world.ranks[:4]:
        _steps(rank, 1.2, TRANSFER + 0.02, TRANSFER + 0.03)
        rank.floor = TRANSFER
    make_slow(scenario.world.ranks[5], 1.5, "data")
    for rank in scenario.world.ranks[4:]:
        _steps(rank, wait=TRANSFER + 0.09 * (rank.rank != 1), longest_wait=TRANSFER + 0.1)
        rank.floor = TRANSFER
    scenario.after(minutes=8)
    scenario.fires(Firing("TrainingStraggler", 1, "data", "host-a", run="run-b"))
    return scenario


def longer_by_chance() -> Scenario:
    """Where a slow rank is another one in each step, one that is slow a little more often is no straggler."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    for rank in scenario.world.ranks:
        # In run-b steps vary by 20 % on each rank and by 20 % on all.
        _steps(rank, 1.8 if rank.run == RUN else 1.5)
    scenario.after(minutes=5)
    for rank in (scenario.world.ranks[3], scenario.world.ranks[7]):
        make_slow(rank, 1.17, "forward")
    scenario.after(minutes=6)
    scenario.fires(Firing("TrainingStraggler", 3, "forward", "host-a", run="run-b"))
    return scenario


def bursts() -> Scenario:
    """Tells that waiting comes in bursts on all ranks while they work steadily, until it no longer does."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        _steps(rank)
    scenario.after(minutes=4)
    scenario.never()
    for rank in scenario.world.ranks:
        _steps(rank, longest_wait=0.1 + 0.01 * rank.rank)
    scenario.after(minutes=5.25)
    scenario.fires(NETWORK)
    scenario.says(
        NETWORK,
        title="All ranks wait for communication in bursts while their own work is steady.",
        summary="Run run-a waits for the network in bursts: in 1 of 20 steps every rank waits longer than usual, "
        "by at least 39.98% of a step.",
        description="In 1 of 20 steps of run run-a, every rank waits longer than usual in communication, by at "
        "least 39.98% of a step, while its own work is steady. The network is the cause, not "
        "a rank.",
        recommendation="Check link errors, retransmissions and congestion marks (ECN) of the hosts' network ports, "
        "other jobs on the same switches, and whether storage traffic takes the same links.",
        runbook_url=f"{RUNBOOKS}/TrainingNetworkBursty.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[1].lost = scenario[1].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(NETWORK)
    scenario[1].lost = scenario[1].exporter_lost = False
    scenario.after(minutes=1)
    scenario.fires(NETWORK)
    for rank in scenario.world.ranks:
        _steps(rank, longest_wait=0.04)
    scenario.after(minutes=3)
    scenario.silent()
    return scenario


def bursts_near_miss() -> Scenario:
    """Bursts of a tenth of the step are tolerated; so are those that own times explain, or that one rank is spared."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b"), *ranks(4, run="run-c"), *ranks(4, run="run-d")])
    for rank in scenario.world.ranks:
        if rank.run == "run-a":
            _steps(rank, longest_wait=TRANSFER + 0.02)
        elif rank.run == "run-b":
            _steps(rank, 1.5, longest_wait=TRANSFER + 0.1)
        elif rank.run == "run-d":
            # Rare on each rank, and frequent among all.
            _steps(rank, longest_wait=TRANSFER + 0.1)
            rank.gauges[_quantile("forward", "p99")] = WORK["forward"] + 0.08
        else:
            _steps(rank, longest_wait=TRANSFER + 0.1 * (rank.rank > 0))
    scenario.after(minutes=8)
    scenario.never()
    return scenario


def contention() -> Scenario:
    """Names a rank whose steps are far less steady than its peers', until they are no more."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        _steps(rank)
    scenario.after(minutes=3)
    _steps(scenario[2], 1.6)
    # It collects garbage too, too little to explain it: for 0.04 s in 25 steps.
    scenario[2].counters[GC] = 1 / 128
    scenario.after(minutes=8.25)
    contended = Firing("TrainingContention", 2, host="host-a")
    scenario.fires(contended)
    scenario.says(
        contended,
        title="The steps of one rank vary far more than those of its peers.",
        summary="The steps of rank 2 of run run-a on host-a vary far more than its peers', by 40.01% of a step.",
        description="On rank 2 of run run-a on host host-a, 1 of 20 steps is longer than its usual "
        "step by at least 95.95ms; on its peers, by 15.93ms. The difference is 40.01% of a step.",
        recommendation="Look for other work on the rank's host: CPU pressure (/proc/pressure/cpu), processes without a "
        "CPU set, a second job on its device, interrupts on its cores. Pin the rank and its data workers to cores of "
        "their own.",
        runbook_url=f"{RUNBOOKS}/TrainingContention.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[2].lost = scenario[2].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(contended)
    scenario[2].lost = scenario[2].exporter_lost = False
    scenario.after(minutes=1)
    scenario.fires(contended)
    _steps(scenario[2], 1.25)
    scenario.after(minutes=3)
    scenario.silent()
    return scenario


def contention_near_miss() -> Scenario:
    """Steps that differ on all ranks alike are no contention, nor is a difference of a sixth of a step on one."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    for rank in scenario.world.ranks:
        _steps(rank, 1.6 if rank.run == "run-a" else 1.1)
    _steps(scenario.world.ranks[6], 1.3)
    scenario.after(minutes=8)
    scenario.never()
    return scenario


def unsteady_for_a_moment() -> Scenario:
    """Slow once for half a minute, a rank is unsteady while 256 steps remember it, and not in contention."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        _steps(rank)
    scenario.after(minutes=3)
    _steps(scenario[2], 1.6)
    scenario.after(minutes=5)
    _steps(scenario[2])
    scenario.after(minutes=5)
    scenario.never()
    return scenario


def unsteady_for_a_reason() -> Scenario:
    """Not in contention: who waits for its own data workers, who is slow and differs as much, who collects garbage."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b"), *ranks(4, run="run-c")])
    for rank in scenario.world.ranks:
        _steps(rank)
    scenario.after(minutes=3)
    starved, slow, collecting = (scenario.world.ranks[number] for number in (2, 6, 10))
    _steps(starved, 1.6)
    _steps(collecting, 1.6)
    collecting.counters[GC] = 3 / 128
    # Two workers, for steps of 0.2 s.
    starved.fetch = 0.36
    make_slow(slow, 5)
    _steps(slow)
    scenario.after(minutes=8)
    scenario.fires(Firing("TrainingStraggler", 2, "mixed", "host-a", run="run-b"))
    scenario.value(f'count(last_over_time(ALERTS{{alertname="TrainingContention", {MINE}}}[1h]))', {})
    return scenario


def transfer_varies() -> Scenario:
    """Where the transfer is long and the usual one well above the least one, nobody waits for another."""
    scenario = Scenario(ranks(4))
    scenario.world.transfer = 0.17
    for rank in scenario.world.ranks:
        _steps(rank, wait=0.17, longest_wait=0.2)
        rank.floor = 0.11
    scenario.after(minutes=7)
    scenario.fires(Firing("TrainingCommunicationBound", phase="communication"))
    scenario.value(f'count(last_over_time(ALERTS{{alertname="TrainingDataImbalance", {MINE}}}[1h]))', {})
    return scenario


def becomes_slow() -> Scenario:
    """A rank that has become slow is not unsteady, though its last 256 steps hold both kinds for some minutes."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.work = {phase: 10 * seconds for phase, seconds in WORK.items()}
        _steps(rank)
    scenario.after(minutes=4)
    slow = scenario[2]
    slow.work["forward"] += 0.8
    slow.gauges[_quantile("forward", "p95")] = 1.4
    scenario.after(minutes=5.5)
    slow.gauges[_quantile("forward", "p50")] = 1.3
    scenario.after(minutes=6)
    scenario.fires(straggler(2, "forward"))
    scenario.value(f'count(last_over_time(ALERTS{{alertname="TrainingContention", {MINE}}}[1h]))', {})
    return scenario


PLAYS: tuple[Play, ...] = (
    slow_host,
    slow_host_of_four,
    slow_ranks_on_a_good_host,
    slow_stage,
    steps_at_the_limit_of_a_window,
    even_stages,
    roaming,
    roaming_beside_a_slow_stage,
    bubbles_differ,
    roaming_by_chance,
    roaming_near_miss,
    longer_by_chance,
    bursts,
    bursts_near_miss,
    contention,
    contention_near_miss,
    unsteady_for_a_moment,
    unsteady_for_a_reason,
    transfer_varies,
    becomes_slow,
)
