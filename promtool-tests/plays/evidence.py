"""What hosts and links say beside the steps: pressure on processors, errors of links, marks of congestion."""

from __future__ import annotations

from scenario import Firing, Play, Scenario, ranks
from slow import unsteady
from world import TRANSFER, Device

FAMILIES = ("shape", "process", "node")
EVERY = 60

PRESSURE = "host_pressure_seconds_total{resource=cpu,tasks=some}"
RETRANSMISSIONS = "host_infiniband_errors_total{device=mlx5_0,port=1,error=packet_seq_err}"
DROPPED = "host_infiniband_errors_total{device=mlx5_0,port=1,error=out_of_buffer}"
MARKS = "host_infiniband_congestion_packets_total{device=mlx5_0,port=1,kind=np_ecn_marked_roce_packets}"
PACKETS = "host_infiniband_receive_packets_total{device=mlx5_0,port=1}"

NETWORK = Firing("TrainingNetworkBursty")


def _host(name: str, **counters: float) -> Device:
    """Return what the exporter of a host counts beside its ranks."""
    return Device(name, label="host_name", counters=counters)


def _node_exporter(host: str, **counters: float) -> Device:
    """Return what node_exporter says of a host."""
    return Device(f"node-{host}", label="job", gauges={f"node_uname_info{{nodename={host}}}": 1}, counters=counters)


def pressure() -> Scenario:
    """Where tasks wait for processors all ranks of that host are named for a tenth of a step, until they are steady."""
    scenario = Scenario(ranks(8, per_host=4))
    quiet, busy = _host("host-a", **{PRESSURE: 1 / 64}), _host("host-b", **{PRESSURE: 1 / 64})
    scenario.world.devices += [quiet, busy]
    for rank in scenario.world.ranks:
        unsteady(rank)
    scenario.after(minutes=6)
    scenario.never()
    busy.counters[PRESSURE] = 1 / 2
    # 0.16 s of work varies by 0.048 s, a quarter of a step of 0.2 s; with the peers it is 0.016 s.
    for rank in scenario.world.ranks[4:]:
        unsteady(rank, 1.3)
    scenario.after(minutes=11)
    contended = tuple(Firing("TrainingContention", number, host="host-b") for number in (4, 5, 6, 7))
    scenario.fires(*contended)
    scenario[4].lost = scenario[4].exporter_lost = busy.lost = True
    scenario.after(seconds=15)
    scenario.fires(*contended)
    scenario[4].lost = scenario[4].exporter_lost = busy.lost = False
    scenario.after(minutes=1)
    scenario.fires(*contended)
    for rank in scenario.world.ranks:
        unsteady(rank)
    scenario.after(minutes=4)
    scenario.silent()
    return scenario


def pressure_near_miss() -> Scenario:
    """Neither pressure alone, nor so much variation without it, nor a twentieth of a step with it is contention."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b"), *ranks(4, run="run-c")])
    for rank in scenario.world.ranks:
        rank.host = f"host-{rank.run[-1]}"
        unsteady(rank)
    unsteady(scenario.world.ranks[6], 1.3)
    unsteady(scenario.world.ranks[10], 1.15)
    scenario.world.devices += [
        _host("host-a", **{PRESSURE: 3 / 4}), _host("host-b", **{PRESSURE: 1 / 8}), _host("host-c", **{PRESSURE: 1 / 2})
    ]  # fmt: skip
    scenario.after(minutes=12)
    scenario.never()
    return scenario


def pressure_by_node_exporter() -> Scenario:
    """What node_exporter says of the pressure on a host is worth as much."""
    scenario = Scenario(ranks(4, per_host=2))
    for rank in scenario.world.ranks:
        unsteady(rank)
    unsteady(scenario[2], 1.3)
    scenario.world.devices += [
        _node_exporter("host-a", node_pressure_cpu_waiting_seconds_total=1 / 32),
        _node_exporter("host-b", node_pressure_cpu_waiting_seconds_total=1 / 2),
    ]
    scenario.after(minutes=12)
    contended = Firing("TrainingContention", 2, host="host-b")
    scenario.fires(contended)
    scenario.says(
        contended,
        title="The steps of one rank vary far more than those of its peers.",
        summary="The steps of rank 2 of run run-a on host-b vary far more than its peers', by 16.02% of a step.",
        description="On rank 2 of run run-a on host host-b, 1 of 20 steps is longer than its usual "
        "step by at least 47.97ms; on its peers, by 15.93ms. The difference is 16.02% of a step. For 50% of the last "
        "five minutes, tasks on its host waited for a CPU.",
        recommendation="Look for what takes the processors of the host (pidstat -u 5): another job, too many data "
        "workers, a limit of the container. Pin the rank and its data workers to cores of their own.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingContention.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def _bursts(scenario: Scenario, seconds: float) -> None:
    for rank in scenario.world.ranks:
        unsteady(rank, longest_wait=TRANSFER + seconds)


def links() -> Scenario:
    """Where a host's link retransmits, bursts of a tenth of a step are the network's, until the link is well again."""
    scenario = Scenario(ranks(8, per_host=4))
    good, bad = _host("host-a", **{RETRANSMISSIONS: 1 / 1024}), _host("host-b", **{RETRANSMISSIONS: 1 / 1024})
    scenario.world.devices += [good, bad]
    _bursts(scenario, 0.022)
    scenario.after(minutes=12)
    scenario.never()
    bad.counters[RETRANSMISSIONS] = 8
    # Own time varies by 0.005 s, and waiting by 0.022 s: 0.11 of a step.
    for rank in scenario.world.ranks:
        unsteady(rank, 1.03, longest_wait=TRANSFER + 0.022)
    scenario.after(minutes=16)
    scenario.fires(NETWORK)
    scenario.says(
        NETWORK,
        title="All ranks wait for communication in bursts while their own work is steady.",
        summary="Run run-a waits for the network in bursts: in 1 of 20 steps every rank waits longer than usual, "
        "by at least 10.99% of a step.",
        description="In 1 of 20 steps of run run-a, every rank waits longer than usual in communication, by at "
        "least 10.99% of a step, while its own work is steady. The network is the cause, not "
        "a rank. Link errors and retransmissions: 8.0 a second on host-b.",
        recommendation="Check cable, transceiver and switch port of host-b first, and take the host out if its errors "
        "go on.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingNetworkBursty.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    bad.lost = scenario[1].lost = True
    scenario.after(seconds=15)
    scenario.fires(NETWORK)
    bad.lost = scenario[1].lost = False
    scenario.after(minutes=1)
    scenario.fires(NETWORK)
    bad.counters[RETRANSMISSIONS] = 1 / 1024
    scenario.after(minutes=36)
    scenario.silent()
    return scenario


def congestion() -> Scenario:
    """So it is where packets bear marks of congestion; a few are no evidence, nor is a receiver without buffers."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b"), *ranks(4, run="run-c")])
    for rank in scenario.world.ranks:
        rank.host = f"host-{rank.run[-1]}"
        unsteady(rank, 1.03, longest_wait=TRANSFER + 0.022)
    scenario.world.devices += [
        _host("host-a", **{PACKETS: 1024, MARKS: 32}),
        _host("host-b", **{PACKETS: 1024, MARKS: 2}),
        _host("host-c", **{PACKETS: 1024, DROPPED: 8}),
    ]
    scenario.after(minutes=20)
    scenario.fires(NETWORK)
    scenario.says(
        NETWORK,
        title="All ranks wait for communication in bursts while their own work is steady.",
        summary="Run run-a waits for the network in bursts: in 1 of 20 steps every rank waits longer than usual, "
        "by at least 10.99% of a step.",
        description="In 1 of 20 steps of run run-a, every rank waits longer than usual in communication, by at "
        "least 10.99% of a step, while its own work is steady. The network is the cause, not "
        "a rank. Packets with marks of congestion: 3.125% on host-a.",
        recommendation="Check link errors, retransmissions and congestion marks (ECN) of the hosts' network ports, "
        "other jobs on the same switches, and whether storage traffic takes the same links.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingNetworkBursty.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def links_by_node_exporter() -> Scenario:
    """What node_exporter counts of links is worth as much; errors alone, while waiting is steady, are no verdict."""
    scenario = Scenario([*ranks(4), *ranks(4, run="run-b")])
    for rank in scenario.world.ranks:
        rank.host = f"host-{rank.run[-1]}"
        unsteady(rank, 1.03, longest_wait=TRANSFER + (0.022 if rank.run == "run-a" else 0.006))
    port = "node_infiniband_port_errors_received_total{device=mlx5_0,port=1}"
    scenario.world.devices += [_node_exporter("host-a", **{port: 8}), _node_exporter("host-b", **{port: 8})]
    scenario.after(minutes=20)
    scenario.fires(NETWORK)
    return scenario


PLAYS: tuple[Play, ...] = (
    pressure,
    pressure_near_miss,
    pressure_by_node_exporter,
    links,
    congestion,
    links_by_node_exporter,
)
