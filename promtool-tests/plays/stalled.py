"""TrainingStalled: which rank is named."""

from __future__ import annotations

from hang import died, frozen, resume, stalled, stick
from laggard.shared.phases import Phase, RankState
from scenario import Firing, Play, Scenario, ranks
from world import RUN, Rank

FAMILIES = ("process",)

#: Collectives as torch numbers them.
ALL_REDUCE, BARRIER = 3, 8


def stuck_rank() -> Scenario:
    """Names the rank that the others wait for, within a minute of the last step, and ends with the stall."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=4)
    stick(scenario, culprit=2)
    scenario.after(seconds=30)
    scenario.silent()
    scenario.after(seconds=30)
    scenario.fires(stalled(2, "forward", "host-b"))
    scenario.says(
        stalled(2, "forward", "host-b"),
        title="A training run makes no progress.",
        summary="Run run-a has stood still for 45s: the others wait for rank 2 on host-b.",
        cost="all of the time",
        description="Run run-a has shown no progress for 45s (limit 15s). The others wait for rank 2 on host "
        "host-b, last seen in phase forward.",
        recommendation="Look at the rank's process on its host: killed, out of memory, stopped or in a device error. A "
        "process that lives shows where it stands: `laggard stacks --run 'run-a' --ranks 2`.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStalled.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario.after(minutes=10)
    scenario.fires(stalled(2, "forward", "host-b"))
    resume(scenario)
    scenario.after(seconds=30)
    scenario.silent()
    return scenario


def dead_rank() -> Scenario:
    """Names a killed rank, in its last phase, although others look no different from a stuck one."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=1)
    scenario[3].phase = Phase.DATA
    scenario[3].kill()
    scenario.after(minutes=1.25)
    scenario.fires(stalled(3, "data", "host-a"), died(3, "data"), Firing("TrainingRankMissing", 3, host="host-a"))
    return scenario


def stopped_rank() -> Scenario:
    """Names a stopped process, whose metrics endpoint does not answer either."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    scenario[2].stopped = scenario[2].lost = True
    scenario.after(minutes=1.25)
    scenario.fires(stalled(2, "communication", "host-a"), frozen(2, "stopped", "communication"))
    scenario.after(minutes=5)
    scenario.fires(stalled(2, "communication", "host-a"), frozen(2, "stopped", "communication"))
    return scenario


def left_the_collective() -> Scenario:
    """Names a rank that has left the collective in which the others still wait, whatever phase they are in."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    for rank in scenario.world.ranks:
        rank.phase = Phase.BACKWARD
    scenario[1].groups["world"] = scenario[1].groups["world"][0], False
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "backward", "host-a"))
    return scenario


def phases_alone() -> Scenario:
    """Where no collective is seen, the phases name the rank that works while others wait."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.groups.clear()
    scenario.after(minutes=3)
    stick(scenario, culprit=3, phase=Phase.OPTIMIZER)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(3, "optimizer", "host-a"))
    return scenario


def all_at_work() -> Scenario:
    """Where nobody waits for another, nobody is named: all ranks read from the same storage."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario.world.training.clear()
    for rank in scenario.world.ranks:
        rank.phase = Phase.DATA
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def ended_ranks() -> Scenario:
    """A rank that has ended cleanly is not blamed, be its process gone or still busy, nor does it hide the stall."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for number in (2, 3):
        scenario[number].state, scenario[number].phase = RankState.FINISHED, Phase.OTHER
    scenario[3].alive = False
    stick(scenario, culprit=1)
    for _ in range(5):
        scenario[2].last_edge = scenario.world.now
        scenario.after(seconds=15)
    scenario.fires(stalled(1, "forward", "host-a"))
    return scenario


def ended_before_the_others() -> Scenario:
    """Where all that are left wait for a rank that has ended cleanly, it is named."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    scenario[2].finish()
    scenario[2].phase = Phase.OTHER
    stick(scenario, culprit=None)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(2, "other", "host-a"))
    scenario.says(
        stalled(2, "other", "host-a"),
        title="A training run makes no progress.",
        summary="Run run-a has stood still for 1m 0s: the others wait for rank 2 on host-a.",
        cost="all of the time",
        description="Run run-a has shown no progress for 1m 0s (limit 15s). The others wait for rank 2 on host "
        "host-a, last seen in phase other.",
        recommendation="It ended cleanly before the others, who wait for it: look for fewer batches than theirs, or a "
        "way out of the loop that one rank takes alone.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStalled.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def fewer_collectives() -> Scenario:
    """Where all wait in a collective, names the rank that has started fewer of them."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    sequence, _ = scenario[3].groups["world"]
    scenario[3].groups["world"] = (sequence - 1, True)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(3, "communication", "host-a"))
    return scenario


def another_collective() -> Scenario:
    """Where all wait for the same collective, names the rank that calls another one there."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.operations["world"] = ALL_REDUCE
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    scenario[1].operations["world"] = BARRIER
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "communication", "host-a"))
    return scenario


def fewer_collectives_of_nccl() -> Scenario:
    """Where hooks see all in the same collective, names the rank that has issued fewer by NCCL's RAS service."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    scenario[1].ras_behind = 2
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "communication", "host-a"))
    scenario[1].ras_behind = 0
    scenario.after(minutes=2)
    scenario.fires(stalled())
    return scenario


def at_work_before_ras() -> Scenario:
    """Who works while others wait is named before who is behind by RAS, which counts no sends and receives."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=2)
    scenario[1].ras_behind = 2
    scenario[3].ras_missing = 1
    scenario.after(minutes=1.25)
    scenario.fires(stalled(2, "forward", "host-a"))
    return scenario


def no_answer_to_ras() -> Scenario:
    """Where nothing else tells ranks apart, names those that stopped answering NCCL's RAS service."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    scenario[2].ras_missing = scenario[3].ras_missing = 1
    scenario.after(minutes=1.25)
    scenario.fires(stalled(2, "communication", "host-b"), stalled(3, "communication", "host-b"))
    return scenario


def given_up_by_ras_before() -> Scenario:
    """Whom RAS had given up before the run stood still trained on without it: nobody is named."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    scenario[2].ras_missing = 2
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def two_sides() -> Scenario:
    """Where half of the ranks call another collective than the other half, nobody is named."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    for rank in scenario.world.ranks:
        rank.operations["world"] = BARRIER if rank.rank % 2 else ALL_REDUCE
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def nobody_stands_out() -> Scenario:
    """Fires without a rank where all wait in the same collective."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    scenario.says(
        stalled(),
        title="A training run makes no progress.",
        summary="Run run-a has stood still for 1m 0s.",
        cost="all of the time",
        description="Run run-a has shown no progress for 1m 0s (limit 15s). No rank stands out: all wait in the "
        "same collective, or none of them waits for another.",
        recommendation="Look at what all ranks share: the network of the collective, the storage, the file system "
        "of the data. Take stacks with `laggard stacks --run 'run-a'` on its hosts.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStalled.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def eight_groups() -> Scenario:
    """With eight process groups a rank, names the one rank behind and none of those that wait for its victims.

    Ranks 0 and 1 share a small group. Rank 1 hangs before its next bucket, with an earlier one still in flight; rank
    0 waits for it there, so it is missing in the large group, where the others wait for it.
    """
    scenario = Scenario(ranks(8, per_host=4))
    for rank in scenario.world.ranks:
        pair = rank.rank // 2
        rank.groups = {f"pair-{pair}": (0, False), **{f"all-{number}": (0, False) for number in range(7)}}
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    for number in range(7):
        for late in (0, 1):
            sequence, _ = scenario[late].groups[f"all-{number}"]
            scenario[late].groups[f"all-{number}"] = (sequence - 1, False)
    sequence, _ = scenario[1].groups["pair-0"]
    scenario[1].groups["pair-0"] = (sequence - 1, True)
    scenario[1].phase = Phase.BACKWARD
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "backward", "host-a"))
    return scenario


def _moved(old_groups: dict[str, tuple[int, bool]]) -> tuple[Scenario, Rank]:
    """Return a run whose rank 2 has moved to host-b, where it trains; its dead process left these groups on host-a."""
    everyone = ranks(4)
    scenario = Scenario([*everyone, Rank(2, "host-b", alive=False, has_exporter=False)])
    old, new = everyone[2], scenario.world.ranks[-1]
    scenario.after(minutes=2)
    stick(scenario, culprit=None)
    scenario.after(seconds=30)
    old.alive = False
    resume(scenario)
    new.alive = new.has_exporter = True
    new.start = new.last_edge = new.last_step = scenario.world.now
    old.phase, old.groups = Phase.COMMUNICATION, old_groups
    scenario.after(minutes=2)
    scenario.silent()
    return scenario, new


def moved_host() -> Scenario:
    """A rank that moved to another host has two state files: the living process gives host, phase and collective."""
    scenario, moved = _moved({"world": (10_000, True)})
    stick(scenario, culprit=2, phase=Phase.DATA)
    moved.groups["world"] = scenario[0].groups["world"][0], False
    scenario.after(minutes=1.25)
    scenario.fires(stalled(2, "data", "host-b"))
    return scenario


def moved_host_behind() -> Scenario:
    """The sequence that a dead process reached on another host is not the one of the rank."""
    scenario, moved = _moved({"world": (10_000, True)})
    stick(scenario, culprit=None)
    sequence, _ = moved.groups["world"]
    moved.groups["world"] = sequence - 1, True
    scenario.after(minutes=1.25)
    scenario.fires(stalled(2, "communication", "host-b"))
    return scenario


def moved_host_alike() -> Scenario:
    """Nor does a dead process that had started few collectives make the rank seem behind."""
    scenario, moved = _moved({"world": (5, True)})
    stick(scenario, culprit=None)
    moved.groups["world"] = scenario[0].groups["world"]
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def two_exporters() -> Scenario:
    """Two exporters that read the same state files make one alert."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        rank.more_exporters = ("host-z",)
    scenario.after(minutes=3)
    stick(scenario, culprit=1)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "forward", "host-a"))
    return scenario


def other_runs() -> Scenario:
    """Another run goes on beside a stuck one and has no alert."""
    scenario = Scenario([*ranks(2), *ranks(2, run="run-b")])
    scenario.after(minutes=3)
    scenario.world.training.discard(RUN)
    scenario[0].enters(Phase.COMMUNICATION, world=(1_000, True))
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "forward", "host-a"))
    return scenario


def pipeline() -> Scenario:
    """Ranks that wait for a tensor of a neighbour are in no collective, but in the communication phase: not blamed."""
    scenario = Scenario(ranks(8))
    for rank in scenario.world.ranks:
        rank.groups = {f"stage-{rank.rank // 2}": (0, False)}
    scenario.after(minutes=3)
    stick(scenario, culprit=3, phase=Phase.BACKWARD)
    for waiting in (1, 5, 7):
        sequence, _ = scenario[waiting].groups[f"stage-{waiting // 2}"]
        scenario[waiting].groups[f"stage-{waiting // 2}"] = (sequence - 1, False)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(3, "backward", "host-a"))
    return scenario


def dead_of_an_earlier_incarnation() -> Scenario:
    """After an elastic restart with fewer ranks, the dead ones of before are not blamed for a stall."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=8)
    scenario[2].alive = scenario[3].alive = False
    for number in (0, 1):
        scenario[number].world_size = 2
        scenario[number].start = scenario.world.now
    scenario.after(minutes=3)
    scenario.silent()
    stick(scenario, culprit=1)
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "forward", "host-a"))
    return scenario


PLAYS: tuple[Play, ...] = (
    stuck_rank,
    dead_rank,
    stopped_rank,
    left_the_collective,
    phases_alone,
    all_at_work,
    ended_ranks,
    ended_before_the_others,
    fewer_collectives,
    another_collective,
    fewer_collectives_of_nccl,
    at_work_before_ras,
    no_answer_to_ras,
    given_up_by_ras_before,
    two_sides,
    nobody_stands_out,
    eight_groups,
    moved_host,
    moved_host_behind,
    moved_host_alike,
    two_exporters,
    other_runs,
    pipeline,
    dead_of_an_earlier_incarnation,
)
