"""TrainingRunFailed: which rank of a run ended first, and how, when nothing of it is left."""

from __future__ import annotations

from hang import begin_again, failed
from laggard.shared.phases import RankState
from scenario import RUNBOOKS, Play, Scenario, ranks
from world import RUN

FAMILIES = ("process",)


def failed_run() -> Scenario:
    """Names the rank that ended first, when nothing of the run is left, until the run begins again."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    now = scenario.world.now
    for rank in scenario.world.ranks:
        rank.alive, rank.failed_at = False, now - 3
    scenario[2].failed_at, scenario[2].ending = now - 5, ("exception", "ValueError")
    scenario[1].failed_at, scenario[1].ending = now - 4, ("exception", "RuntimeError")
    scenario.after(seconds=15)
    scenario.never()
    scenario.after(seconds=45)
    first = failed("exception", "ValueError", rank=2, phase="forward", host="host-b")
    scenario.fires(first)
    scenario.says(
        first,
        title="A training run failed.",
        summary="Run run-a failed: rank 2 on host-b ended first, 50s ago.",
        description="Rank 2 of run run-a on host host-b ended first, in phase forward, by the exception ValueError, "
        "50s ago. No rank of the run is left.",
        recommendation="Read the rank's log: the last exception there is the cause, those of the other ranks follow "
        "from its end.",
        runbook_url=f"{RUNBOOKS}/TrainingRunFailed.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[2].exporter_lost = True
    scenario.after(seconds=15)
    scenario.fires(first)
    scenario[2].exporter_lost = False
    scenario.after(minutes=65)
    scenario.fires(first)
    begin_again(scenario)
    scenario.after(seconds=45)
    scenario.silent()
    for rank in scenario.world.ranks:
        rank.finish()
    scenario.after(minutes=2)
    scenario.silent()
    return scenario


def failed_between_two_scrapes() -> Scenario:
    """A run that its launcher begins again before the next scrape is told for five minutes, and who failed."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.failed_at, rank.ending, rank.start = scenario.world.now + rank.rank, ("exit", "1"), scenario.world.now + 5
        rank.last_edge = scenario.world.now + 5
    scenario.after(minutes=1)
    # Seen by its launcher, and begun again between two scrapes.
    again = failed("exit", "1", rank=0, phase="forward", host="host-a")
    scenario.fires(again)
    scenario.after(minutes=5)
    scenario.silent()
    return scenario


def failed_unseen() -> Scenario:
    """Of a run whose first end nobody can tell, the run is named; of one that was asked to end, nothing is said."""
    scenario = Scenario([*ranks(4, per_host=2), *ranks(4, run="run-b"), *ranks(4, run="run-c"), *ranks(4, run="run-d")])
    early = ranks(4, run="run-e")
    scenario.world.ranks[4:4] = early
    scenario.world.training.add("run-e")
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.alive = False
        rank.ending = ("unknown", "") if rank.run != "run-c" else rank.ending
        rank.failed_at = scenario.world.now - 5 + rank.rank
    # A host is gone with its ranks; two ends that nobody saw; scancel, and then SIGKILL for who does not end.
    scenario[2].exporter_lost = scenario[3].exporter_lost = True
    for rank in scenario.world.ranks[8:10]:
        rank.ending = ("unseen", "")
    scenario.world.ranks[-5].ending = ("unknown", "")
    # An end of before: rank 3 was left out when the others began again, and they have ended well.
    for rank in scenario.world.ranks[-4:-1]:
        rank.failed_at, rank.start = None, scenario.world.now - 30
        rank.finish()
    scenario.world.ranks[-1].failed_at = scenario.world.now - 60
    # One left early, with a clean end, and the others lost its connections.
    for rank in early:
        rank.ending = ("exception", "RuntimeError")
    early[3].failed_at = None
    early[3].finish()
    scenario.after(minutes=2)
    scenario.fires(failed("unknown"), failed("unseen", run="run-b"), failed("exception", "RuntimeError", run="run-e"))
    return scenario


def killed_together() -> Scenario:
    """Of ranks that are killed together none is named, but the host that they were on; one that is killed alone is."""
    scenario = Scenario([*ranks(4, per_host=2), *ranks(4, run="run-b", per_host=2), *ranks(4, run="run-c")])
    scenario.after(minutes=3)
    now = scenario.world.now
    for rank in scenario.world.ranks:
        # A container runs out of memory; the whole job is killed; mpirun kills all others, some seconds after one died.
        rank.alive, rank.ending = False, ("unknown", "")
        rank.failed_at = now - 5 + 0.1 * rank.rank
        if rank.run == RUN and rank.host == "host-a":
            rank.ending = ("exception", "RuntimeError")
            rank.failed_at = now - 5 + 0.25 + 0.1 * rank.rank
    scenario.world.ranks[-2].failed_at = now - 8
    scenario.after(minutes=1.25)
    scenario.fires(
        failed("unknown", host="host-b"),
        failed("unknown", run="run-b"),
        failed("unknown", run="run-c", rank=2, phase="forward", host="host-a"),
    )
    return scenario


def exporter_forgot() -> Scenario:
    """What an exporter said of an end, clean or not, holds after its restart, when it knows the last sign of life."""
    scenario = Scenario([*ranks(2), *ranks(2, run="run-b"), *ranks(2, run="run-c")])
    scenario.after(minutes=3)
    crashed, asked = scenario[1], scenario.world.ranks[3]
    now = scenario.world.now
    # These leave through os._exit(0), of which the kernel tells the exporter.
    left = scenario.world.ranks[4:]
    for rank in left:
        rank.finish()
    for rank in scenario.world.ranks[:4]:
        rank.alive, rank.failed_at = False, now - 4
    scenario[0].ending = ("exception", "RuntimeError")
    crashed.failed_at, crashed.ending = now - 5, ("unknown", "SIGSEGV")
    asked.failed_at, asked.ending = now - 5, ("request", "SIGHUP")
    first = failed("unknown", "SIGSEGV", rank=1, phase="forward", host="host-a")
    scenario.after(minutes=1)
    scenario.fires(first)
    for rank in (crashed, asked):
        rank.failed_at, rank.ending = now - 6, ("unseen", "")
    for rank in left:
        rank.state, rank.failed_at, rank.ending = RankState.RUNNING, now - 1, ("unseen", "")
    for _ in range(3):
        scenario.after(minutes=4)
        scenario.fires(first)
    return scenario


def killed_on_a_host() -> Scenario:
    """What is said where the ranks that were killed together were on one host."""
    scenario = Scenario(ranks(4, per_host=2))
    scenario.after(minutes=3)
    now = scenario.world.now
    for rank in scenario.world.ranks:
        rank.alive, rank.ending = False, ("unknown", "SIGKILL")
        rank.failed_at = now - 5 + (0 if rank.host == "host-b" else 2)
    scenario.after(minutes=1)
    on_host = failed("unknown", host="host-b")
    scenario.says(
        on_host,
        title="A training run failed.",
        summary="Run run-a failed on host-b, 50s ago.",
        description="Run run-a ended on host host-b without a word, as by SIGKILL, a fault in native code or os._exit, "
        "50s ago. Which rank ended first is not known. No rank of the run is left.",
        recommendation="Read the kernel's log on the rank's host (dmesg: out of memory, XID, segfault) and what the "
        "scheduler or the container says of the end; the errors of the other ranks follow from it.",
        runbook_url=f"{RUNBOOKS}/TrainingRunFailed.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def crashed_first() -> Scenario:
    """Of ranks that die together, whom a fault of its own or the lack of memory ended is named."""
    scenario = Scenario([*ranks(4, per_host=2), *ranks(4, run="run-b", per_host=2), *ranks(4, run="run-c")])
    scenario.after(minutes=3)
    now = scenario.world.now
    for rank in scenario.world.ranks:
        rank.alive, rank.ending = False, ("unknown", "SIGKILL")
        rank.failed_at = now - 5 + 0.1 * rank.rank
    scenario[2].ending = ("unknown", "SIGSEGV")
    scenario.world.ranks[5].ending = ("unknown", "out of memory")
    # Who aborts may have lost who was killed: a watchdog does that.
    scenario.world.ranks[10].ending = ("unknown", "SIGABRT")
    scenario.after(minutes=1)
    scenario.fires(
        failed("unknown", "SIGSEGV", rank=2, phase="forward", host="host-b"),
        failed("unknown", "out of memory", run="run-b", rank=1, phase="forward", host="host-a"),
        failed("unknown", run="run-c", host="host-a"),
    )
    return scenario


def out_of_memory() -> Scenario:
    """What is said of a rank that the kernel killed for lack of memory."""
    scenario = Scenario(ranks(2))
    scenario.after(minutes=3)
    for rank in scenario.world.ranks:
        rank.alive, rank.ending, rank.failed_at = False, ("unknown", "SIGKILL"), scenario.world.now - 5
    scenario[1].ending = ("unknown", "out of memory")
    scenario.after(minutes=1)
    scenario.says(
        failed("unknown", "out of memory", rank=1, phase="forward", host="host-a"),
        title="A training run failed.",
        summary="Run run-a failed: rank 1 on host-a ended first, 50s ago.",
        description="Rank 1 of run run-a on host host-a ended first, in phase forward, killed by the kernel for lack "
        "of memory, 50s ago. No rank of the run is left.",
        recommendation="Read the kernel's log on the rank's host (dmesg: out of memory, XID, segfault) and what the "
        "scheduler or the container says of the end; the errors of the other ranks follow from it.",
        runbook_url=f"{RUNBOOKS}/TrainingRunFailed.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def failed_last() -> Scenario:
    """A rank that fails once all others ended cleanly is said, though one of those may have left it alone."""
    scenario = Scenario(ranks(4))
    scenario.after(minutes=3)
    for number in (1, 2, 3):
        scenario[number].finish()
    scenario.after(seconds=30)
    scenario[0].alive, scenario[0].ending = False, ("exception", "OSError")
    scenario[0].failed_at = scenario.world.now - 2
    scenario.after(minutes=1)
    last = failed("exception", "OSError")
    scenario.fires(last)
    scenario.says(
        last,
        title="A training run failed.",
        summary="Run run-a failed, 47s ago.",
        description="Run run-a ended by the exception OSError, 47s ago. Which rank ended first is not known. Only "
        "rank 0 is known to have failed. Ended cleanly: 3 ranks, which the others may have lost. No rank of the run "
        "is left.",
        recommendation="Read the rank's log: the last exception there is the cause, those of the other ranks follow "
        "from its end.",
        runbook_url=f"{RUNBOOKS}/TrainingRunFailed.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def left_early() -> Scenario:
    """A rank with less data leaves early, and its peer fails as it loses it: who left is said, not blamed."""
    scenario = Scenario(ranks(2))
    scenario.after(minutes=3)
    scenario[1].finish()
    scenario[0].alive, scenario[0].ending = False, ("exception", "RuntimeError")
    scenario[0].failed_at = scenario.world.now + 1
    scenario.after(minutes=1)
    lost = failed("exception", "RuntimeError")
    scenario.fires(lost)
    scenario.says(
        lost,
        title="A training run failed.",
        summary="Run run-a failed, 44s ago.",
        description="Run run-a ended by the exception RuntimeError, 44s ago. Which rank ended first is not known. Only "
        "rank 0 is known to have failed. Ended cleanly: rank 1, which the others may have lost. No rank of the run is "
        "left.",
        recommendation="Read the rank's log: the last exception there is the cause, those of the other ranks follow "
        "from its end.",
        runbook_url=f"{RUNBOOKS}/TrainingRunFailed.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


PLAYS: tuple[Play, ...] = (
    failed_run,
    failed_between_two_scrapes,
    failed_unseen,
    failed_last,
    left_early,
    killed_together,
    exporter_forgot,
    killed_on_a_host,
    crashed_first,
    out_of_memory,
)
