"""Memory that leaks, and memory that only comes and goes; a run for each case."""

from __future__ import annotations

from scenario import Firing, Play, Scenario, ranks
from world import Rank

FAMILIES = ("memory", "node")
EVERY = 120

GIB = 2.0**30

ALLOCATED = "training_memory_usage_bytes{memory_kind=device_allocated}"
RESERVED = "training_memory_usage_bytes{memory_kind=device_reserved}"
PEAK = "training_memory_usage_bytes{memory_kind=device_peak}"
RESIDENT = "training_memory_usage_bytes{memory_kind=host_rss}"
WORKERS = "training_memory_usage_bytes{memory_kind=worker_rss}"
DEVICE_LIMIT = "training_memory_limit_bytes{memory_kind=device}"
HOST_LIMIT = "training_memory_limit_bytes{memory_kind=host}"
RETRIES = "training_memory_allocation_retries_total"
FAILED = "training_memory_out_of_memory_total"


def _leak(run: str, kind: str, rank: int | None = None, host: str = "") -> Firing:
    return Firing("TrainingMemoryLeak", rank, host=host, run=run, more=(("training_memory_kind", kind),))


def _runs(*names: str, tick: int = 60) -> Scenario:
    scenario = Scenario([rank for name in names for rank in ranks(3, run=name)], tick)
    for rank in scenario.world.ranks:
        rank.has_exporter = False
        rank.gauges = {
            ALLOCATED: 32 * GIB, RESERVED: 36 * GIB, PEAK: 48 * GIB, DEVICE_LIMIT: 80 * GIB,
            RESIDENT: 8 * GIB, WORKERS: 8 * GIB, HOST_LIMIT: 256 * GIB,
        }  # fmt: skip
    return scenario


def _use(rank: Rank, minute: int) -> None:
    """Set what a rank's memory is at that minute of its run."""
    gauges = rank.gauges
    if rank.run == "device" and rank.rank == 1:
        gauges[ALLOCATED] = (32 + minute / 16) * GIB
    elif rank.run == "host":
        # Of all ranks, and on top of what a garbage collection brings back every four minutes.
        gauges[RESIDENT] = (8 + minute / 8 + (minute % 4)) * GIB
    elif (rank.run, rank.rank) == ("workers", 2):
        gauges[WORKERS] = (8 + minute / 4) * GIB
    elif rank.run == "sawtooth":
        gauges[RESIDENT] = (8 + (minute % 10)) * GIB
        gauges[ALLOCATED] = (32 + (minute * 7) % 5) * GIB
    elif rank.run == "fills":
        # Fast at first, and less and less.
        gauges[RESIDENT] = (8 + 32 * (1 - 0.97**minute)) * GIB
    elif rank.run == "slow":
        # 48 GiB are left, which is two days.
        gauges[ALLOCATED] = (32 + minute / 64) * GIB


def _go_on(scenario: Scenario, minutes: range) -> None:
    for minute in minutes:
        for rank in scenario.world.ranks:
            _use(rank, minute)
        scenario.after(minutes=1)


def leaks() -> Scenario:
    """Names the rank, or the run where most ranks leak; not what comes and goes, fills up or lasts for days."""
    scenario = _runs("device", "host", "workers", "sawtooth", "fills", "slow")
    _go_on(scenario, range(50))
    scenario.never()
    _go_on(scenario, range(50, 70))
    found = (
        _leak("device", "device_allocated", 1, "host-a"),
        _leak("host", "host_rss"),
        _leak("workers", "worker_rss", 2, "host-a"),
    )
    scenario.fires(*found)
    for rank in scenario.world.ranks:
        if rank.run in ("sawtooth", "fills", "slow"):
            rank.gauges[RESIDENT] = 8 * GIB
    scenario.after(minutes=50)
    scenario.silent()
    return scenario


def over_a_lost_scrape() -> Scenario:
    """A leak is told through lost scrapes, before and after it is known."""
    scenario = _runs("device", tick=30)
    for minute in range(75):
        scenario[1].gauges[ALLOCATED] = (32 + minute / 16) * GIB
        for lost in (minute in (10, 30, 50, 70), False):
            scenario[0].lost = scenario[1].lost = lost
            scenario.after(seconds=30)
    scenario.fires(_leak("device", "device_allocated", 1, "host-a"))
    scenario[0].lost = scenario[1].lost = True
    scenario.after(seconds=30)
    scenario.fires(_leak("device", "device_allocated", 1, "host-a"))
    return scenario


def _misuse(scenario: Scenario, *, limits: bool) -> None:
    """Use nearly all of what is tolerated, or a little more than that."""
    for rank in scenario.world.ranks:
        more = float(limits)
        if rank.run == "full":
            rank.gauges[PEAK] = (74 + 4 * more) * GIB
        elif rank.run == "full-host":
            # Three ranks share the limit of their host.
            rank.gauges[WORKERS] = (71 + 4 * more) * GIB
        elif rank.run == "pieces":
            rank.gauges[RESERVED] = (40 + 8 * more) * GIB
            rank.counters[RETRIES] = 1 / 64
        elif rank.run == "tidy":
            # Much of it is in no tensor, but nothing fails.
            rank.gauges[RESERVED] = 64 * GIB
            rank.counters[RETRIES] = 0
        elif rank.run == "fails":
            rank.counters[FAILED] = more / 64


def shortage() -> Scenario:
    """Tells when the peak, or the host, is near the limit, when memory is in pieces and when allocations fail."""
    scenario = _runs("full", "full-host", "pieces", "tidy", "fails")
    _misuse(scenario, limits=False)
    scenario.after(minutes=20)
    scenario.never()
    _misuse(scenario, limits=True)
    scenario.after(minutes=22)
    found = (
        Firing("TrainingMemoryHeadroom", run="full", more=(("training_memory_kind", "device"),)),
        Firing("TrainingMemoryHeadroom", run="full-host", more=(("training_memory_kind", "host"),)),
        Firing("TrainingMemoryFragmentation", run="pieces"),
        Firing("TrainingOutOfMemory", run="fails"),
    )
    scenario.fires(*found)
    _misuse(scenario, limits=False)
    scenario.after(minutes=20)
    scenario.silent()
    return scenario


def host_of_node_exporter() -> Scenario:
    """Without a limit of its control group a rank's leak is measured by what node_exporter says is free on its host."""
    everyone = ranks(3, per_host=2)
    scenario = Scenario(everyone, tick=60)
    scenario.given("node_uname_info", 1, instance="a:9100", job="node", nodename="host-a")
    scenario.given("node_uname_info", 1, instance="b:9100", job="node", nodename="host-b")
    scenario.given("node_memory_MemAvailable_bytes", 1000 * GIB, instance="a:9100", job="node")
    scenario.given("node_memory_MemAvailable_bytes", 10 * GIB, instance="b:9100", job="node")
    for rank in everyone:
        rank.has_exporter = False
    for minute in range(70):
        for rank in everyone:
            rank.gauges[RESIDENT] = (8 + minute / 16 * (rank.rank != 1)) * GIB
        scenario.after(minutes=1)
    # Rank 0 leaks as much, and would need ten days.
    scenario.fires(
        Firing("TrainingMemoryLeak", 2, host="host-b", more=(("training_memory_kind", "host_rss"),))
    )  # fmt: skip
    return scenario


def beside_a_leak() -> Scenario:
    """Of a host whose ranks all grow, those are named that grow by a good part of what the worst of them does."""
    scenario = _runs("creeps")
    leaking = {RESIDENT: 1, WORKERS: 2}
    for minute in range(70):
        for rank in scenario.world.ranks:
            for memory, worst in leaking.items():
                rank.gauges[memory] = (8 + minute / 4 * (1 if rank.rank == worst else 0.01)) * GIB
        scenario.after(minutes=1)
    scenario.fires(_leak("creeps", "host_rss", 1, "host-a"), _leak("creeps", "worker_rss", 2, "host-a"))
    return scenario


PLAYS: tuple[Play, ...] = (leaks, over_a_lost_scrape, shortage, host_of_node_exporter, beside_a_leak)
