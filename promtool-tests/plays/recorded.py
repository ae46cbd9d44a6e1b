"""TrainingStalled where the state files of all ranks look alike, and the dumps of their flight recorders do not."""

from __future__ import annotations

from hang import stalled, stick
from laggard.shared.phases import Phase
from scenario import Play, Scenario, ranks
from world import Progress

FAMILIES = ("process",)


def _alike(count: int = 8) -> Scenario:
    """Return a run whose hosts have all issued the same and wait, as those do whose devices work behind them."""
    scenario = Scenario(ranks(count, per_host=4))
    for rank in scenario.world.ranks:
        rank.groups = {"world": (0, False), f"pair-{rank.rank // 2}": (0, False)}
    scenario.after(minutes=3)
    stick(scenario, culprit=None)
    for rank in scenario.world.ranks:
        rank.phase = Phase.BACKWARD
        rank.recorder = {
            "world": Progress(900, pending=900, begun=True),
            f"pair-{rank.rank // 2}": Progress(1800),
        }
    return scenario


def device_that_has_not_begun() -> Scenario:
    """Names the rank whose device has not begun what all have issued and most work on, and nobody once it is over."""
    scenario = _alike()
    scenario[5].recorder = {"world": Progress(900, pending=900, begun=False), "pair-2": Progress(1800)}
    scenario.after(minutes=1.25)
    scenario.fires(stalled(5, "backward", "host-b"))
    scenario.says(
        stalled(5, "backward", "host-b"),
        title="A training run makes no progress.",
        summary="Run run-a has stood still for 1m 0s: the others wait for rank 5 on host-b.",
        cost="all of the time",
        description="Run run-a has shown no progress for 1m 0s (limit 15s). The others wait for rank 5 on host "
        "host-b, last seen in phase backward, which flight recorders confirm.",
        recommendation="Look at the rank's process on its host: killed, out of memory, stopped or in a device error. A "
        "process that lives shows where it stands: `laggard stacks --run 'run-a' --ranks 5`.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingStalled.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def all_devices_have_begun() -> Scenario:
    """Names nobody where all devices work on the same collective: it is the network."""
    scenario = _alike()
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def behind_another_collective() -> Scenario:
    """A device that has not begun since it waits in a smaller group is not blamed, but the one it waits for there."""
    scenario = _alike()
    scenario[4].recorder = {
        "world": Progress(900, pending=900, begun=False),
        "pair-2": Progress(1801, pending=1801, begun=True),
    }
    scenario[5].recorder = {
        "world": Progress(900, pending=900, begun=False),
        "pair-2": Progress(1801, pending=1801, begun=False),
    }
    scenario.after(minutes=1.25)
    scenario.fires(stalled(5, "backward", "host-b"))
    return scenario


def _late(scenario: Scenario, *late: int) -> None:
    """Have ranks issue one collective less than the others over all ranks: hooks and NCCL's RAS service count that."""
    for number in late:
        sequence, _ = scenario[number].groups["world"]
        scenario[number].groups["world"] = (sequence - 1, False)
        scenario[number].phase = Phase.OTHER
        scenario[number].ras_behind = 1


def device_that_hangs_before_a_collective() -> Scenario:
    """Names nobody where two wait for each other in a smaller group, and so are late for all: one of them waits."""
    scenario = _alike()
    _late(scenario, 4, 5)
    for number in (4, 5):
        scenario[number].recorder = {"world": Progress(899), "pair-2": Progress(1801, pending=1801)}
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def skipped_call() -> Scenario:
    """Names nobody where two wait for each other in two groups: the late one waits, since the other left a call out."""
    scenario = _alike()
    _late(scenario, 4)
    scenario[4].recorder = {"world": Progress(899), "pair-2": Progress(1801, pending=1801)}
    scenario[5].recorder = {"world": Progress(900, pending=900), "pair-2": Progress(1801, pending=1801)}
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def late_without_a_dump() -> Scenario:
    """Names who is late and left no dump: nothing says that it waits."""
    scenario = _alike()
    _late(scenario, 4)
    scenario[4].recorder = {}
    scenario.after(minutes=1.25)
    scenario.fires(stalled(4, "other", "host-b"))
    return scenario


def done_on_the_others() -> Scenario:
    """Names nobody where a collective is open on one rank and done on all others: a link that breaks leaves that."""
    scenario = _alike()
    scenario[2].recorder = {"world": Progress(900, pending=899, begun=True), "pair-1": Progress(1800)}
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def another_size() -> Scenario:
    """Names the rank that brings another size than most: the operation is the same."""
    scenario = _alike()
    for rank in scenario.world.ranks:
        rank.recorder = {"world": Progress(900, pending=900, call="of-4")}
    scenario[6].recorder = {"world": Progress(900, pending=900, call="of-5")}
    scenario.after(minutes=1.25)
    scenario.fires(stalled(6, "backward", "host-b"))
    return scenario


def two_sizes() -> Scenario:
    """Names nobody where half of the ranks bring another size than the other half."""
    scenario = _alike()
    for rank in scenario.world.ranks:
        rank.recorder = {"world": Progress(900, pending=900, call=f"of-{rank.rank % 2}")}
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def _ninth_group() -> Scenario:
    """Return a run that waits in groups for which the state files have no room: ranks 0 to 6 for 7, 7 for 3."""
    scenario = _alike()
    for rank in scenario.world.ranks:
        rank.recorder = {"ninth": Progress(41, pending=41)}
    scenario[7].recorder = {"ninth": Progress(40), "tenth": Progress(12, pending=12)}
    scenario[3].recorder = {"ninth": Progress(40), "tenth": Progress(11)}
    return scenario


def outermost_collective() -> Scenario:
    """Names the rank that is in no collective, and not the one that is late since it waits for it in another group."""
    scenario = _ninth_group()
    scenario.after(minutes=1.25)
    scenario.fires(stalled(3, "backward", "host-a"))
    return scenario


def several_outside() -> Scenario:
    """Names all that are waited for and wait for nobody."""
    scenario = _ninth_group()
    scenario[1].recorder = {"ninth": Progress(40)}
    scenario.after(minutes=1.25)
    scenario.fires(stalled(1, "backward", "host-a"), stalled(3, "backward", "host-a"))
    return scenario


def different_order() -> Scenario:
    """Names nobody where two ranks call two collectives in different order and wait for each other."""
    scenario = _alike(2)
    scenario[0].recorder = {"world": Progress(900, pending=900), "pair-0": Progress(1799)}
    scenario[1].recorder = {"world": Progress(899), "pair-0": Progress(1800, pending=1800)}
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def in_a_transfer() -> Scenario:
    """A rank in a send or receive is not blamed, be it that the recorder says so or that its phase does."""
    scenario = _ninth_group()
    scenario[3].transfer = True
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    scenario[3].transfer = False
    scenario[3].phase = Phase.COMMUNICATION
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    return scenario


def side_not_posted() -> Scenario:
    """Names the rank that does not post its side of a send or receive, and not the two on one host that wait for it."""
    scenario = _alike()
    for rank, peers in ((0, (1,)), (1, (0, 3)), (2, (3,))):
        scenario[rank].recorder = {"world": Progress(899)}
        scenario[rank].transfer, scenario[rank].peers = True, peers
    scenario[3].recorder = {"world": Progress(899)}
    scenario.after(minutes=1.25)
    scenario.fires(stalled(3, "backward", "host-a"))
    return scenario


def one_dump_missing() -> Scenario:
    """Where a rank left no dump, maybe since it holds the interpreter, the state files alone are asked."""
    scenario = _ninth_group()
    scenario[6].recorder = None
    scenario.after(minutes=1.25)
    scenario.fires(stalled())
    scenario[6].phase = Phase.FORWARD
    scenario[6].groups = {group: (sequence, False) for group, (sequence, _) in scenario[6].groups.items()}
    scenario.after(minutes=1.25)
    scenario.fires(stalled(6, "forward", "host-b"))
    return scenario


def long_save() -> Scenario:
    """Dumps of ranks that wait for one that saves raise no alert: they are evidence, not a sign."""
    scenario = _ninth_group()
    scenario[3].phase = Phase.CHECKPOINT
    scenario.after(minutes=5)
    scenario.never()
    return scenario


PLAYS: tuple[Play, ...] = (
    device_that_has_not_begun,
    all_devices_have_begun,
    behind_another_collective,
    device_that_hangs_before_a_collective,
    skipped_call,
    late_without_a_dump,
    done_on_the_others,
    another_size,
    two_sizes,
    outermost_collective,
    several_outside,
    different_order,
    in_a_transfer,
    side_not_posted,
    one_dump_missing,
    long_save,
)
