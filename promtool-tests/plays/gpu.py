"""The health of GPUs, and how well runs use them: a GPU for each fault, all at once."""

from __future__ import annotations

from collections.abc import Callable

from scenario import Firing, Play, Scenario, ranks
from world import RUN, Device

FAMILIES = ("gpu",)
EVERY = 60

HEAT = "gpu_clock_event_seconds_total{reason=hw_thermal}"
CAP = "gpu_clock_event_seconds_total{reason=sw_power_cap}"
REPLAYS = "gpu_pcie_replays_total"
ECC = "gpu_ecc_volatile_errors_total{severity=uncorrected}"
RECOVERY = "gpu_nvlink_errors_total{error=recovery}"


def healthy_gpu(uuid: str, run: str = RUN, rank: int | None = None) -> Device:
    """Return a healthy GPU at work."""
    return Device(
        uuid, run, rank,
        gauges={
            "gpu_up": 1, f"gpu_info{{name={'B' if uuid == 'board' else 'A'}}}": 1, "gpu_utilization_ratio": 1,
            "gpu_clock_hertz{clock=sm}": 1.875, "gpu_clock_max_hertz{clock=sm}": 2,
            "gpu_recovery_action{action=none}": 1, "gpu_recovery_action{action=reset}": 0,
            "gpu_row_remap_pending": 0, "gpu_row_remap_failed": 0, "gpu_ecc_sram_threshold_exceeded": 0,
            "gpu_pcie_link_width": 16, "gpu_pcie_link_width_max": 16,
            "gpu_pcie_link_generation": 5, "gpu_pcie_link_generation_max": 5,
            "gpu_nvlink_links{state=active}": 18, "gpu_nvlink_links{state=inactive}": 0,
            "gpu_fabric_health{condition=bandwidth_degraded}": 0,
            "gpu_sm_activity_ratio": 0.75, "gpu_tensor_activity_ratio": 0.25,
        },
        counters={HEAT: 1 / 16, CAP: 3 / 4, REPLAYS: 1 / 64, ECC: 0, RECOVERY: 0},
    )  # fmt: skip


def _set(**gauges: float) -> Callable[[Device], None]:
    return lambda gpu: gpu.gauges.update(gauges)


def _count(series: str, growth: float) -> Callable[[Device], None]:
    return lambda gpu: gpu.counters.update({series: growth})


#: GPU -> what breaks it, its alert and the labels that this alert has.
FAULTS: dict[str, tuple[Callable[[Device], None], str, dict[str, str]]] = {
    "lost": (_set(gpu_up=0), "TrainingGpuLost", {}),
    "xid": (lambda _: None, "TrainingGpuXidCritical", {"xid": "79"}),
    "contained": (lambda _: None, "TrainingGpuXidContained", {"xid": "94"}),
    "ecc": (_count(ECC, 1 / 64), "TrainingGpuEccErrors", {}),
    "sram": (_set(gpu_ecc_sram_threshold_exceeded=1), "TrainingGpuEccErrors", {}),
    "action": (
        lambda gpu: gpu.gauges.update({"gpu_recovery_action{action=reset}": 1, "gpu_recovery_action{action=none}": 0}),
        "TrainingGpuRecoveryNeeded",
        {"action": "reset"},
    ),
    "hot": (_count(HEAT, 1 / 4), "TrainingGpuThrottled", {"reason": "hw_thermal"}),
    "clock": (
        lambda gpu: gpu.gauges.update({"gpu_clock_hertz{clock=sm}": 1.5}),
        "TrainingGpuClockLow",
        {},
    ),
    "failed": (_set(gpu_row_remap_failed=1), "TrainingGpuRowRemap", {"state": "failed"}),
    "pending": (_set(gpu_row_remap_pending=1), "TrainingGpuRowRemap", {"state": "pending"}),
    "lanes": (_set(gpu_pcie_link_width=8), "TrainingGpuPcieDegraded", {"link": "width"}),
    "slow-link": (_set(gpu_pcie_link_generation=3), "TrainingGpuPcieDegraded", {"link": "generation"}),
    "replays": (_count(REPLAYS, 1 / 4), "TrainingGpuPcieDegraded", {"link": "replays"}),
    "links": (
        lambda gpu: gpu.gauges.update({"gpu_nvlink_links{state=inactive}": 2, "gpu_nvlink_links{state=active}": 16}),
        "TrainingGpuNvlinkDegraded",
        {},
    ),
    "fabric": (
        lambda gpu: gpu.gauges.update({"gpu_fabric_health{condition=bandwidth_degraded}": 1}),
        "TrainingGpuNvlinkDegraded",
        {},
    ),
    "recovers": (_count(RECOVERY, 1 / 64), "TrainingGpuNvlinkDegraded", {}),
}


def _expected(name: str, rank: int) -> Firing:
    _, alert, labels = FAULTS[name]
    return Firing(alert, rank, host="host-a", more=(("uuid", name), *labels.items()))


def health() -> Scenario:
    """Each fault names the rank that uses the GPU and its host, over lost scrapes too, and ends with the fault."""
    everyone = ranks(len(FAULTS), per_host=99)
    scenario = Scenario(everyone, tick=30)
    gpus = [healthy_gpu(uuid, rank=number) for number, uuid in enumerate(FAULTS)]
    for rank in everyone:
        rank.has_exporter = False
    # This one's exporter does not know who uses it; the rank does.
    gpus[0].has_workload = False
    everyone[0].hw_id = gpus[0].uuid
    # No run uses these. A board without all links has them down on all of its GPUs; an idle link is slow.
    idle, board = healthy_gpu("idle", run=""), healthy_gpu("board", run="")
    board.gauges.update({"gpu_nvlink_links{state=inactive}": 6, "gpu_pcie_link_generation": 1})
    board.gauges["gpu_utilization_ratio"] = 0
    scenario.world.devices += [*gpus, idle, board]
    scenario.after(minutes=12)
    scenario.never()
    for gpu, (breaks, _, _) in zip(gpus, FAULTS.values(), strict=True):
        breaks(gpu)
    gpus[1].gauges["gpu_xid_last_timestamp_seconds{xid=79,tier=critical}"] = scenario.world.now
    gpus[1].gauges["gpu_xid_last_timestamp_seconds{xid=31,tier=application}"] = scenario.world.now
    gpus[2].gauges["gpu_xid_last_timestamp_seconds{xid=94,tier=warning}"] = scenario.world.now
    idle.gauges["gpu_up"] = 0
    scenario.after(minutes=14)
    found = [_expected(name, number) for number, name in enumerate(FAULTS)]
    found.append(Firing("TrainingGpuLost", run="", more=(("uuid", "idle"),)))
    scenario.fires(*found)
    for gpu in gpus:
        gpu.lost = True
    scenario.after(seconds=30)
    scenario.fires(*found)
    for number, gpu in enumerate(gpus):
        healthy = healthy_gpu(gpu.uuid, rank=number)
        gpu.lost, gpu.counters = False, healthy.counters
        gpu.gauges.update(healthy.gauges)
    idle.gauges["gpu_up"] = 1
    scenario.after(minutes=36)
    # What needs a look at the host is told for an hour.
    scenario.fires(_expected("xid", 1), _expected("contained", 2))
    scenario.after(minutes=12)
    scenario.silent()
    return scenario


def use() -> Scenario:
    """Tells of a run that is held by its power limit, launches too little, or computes without tensor cores.

    A run that stands still has GPUs without work, which are not to blame.
    """
    names = ("capped", "launches", "floats", "healthy", "stalled")
    scenario = Scenario([rank for name in names for rank in ranks(2, run=name)], tick=60)
    scenario.world.devices += [
        healthy_gpu(f"{rank.run}-{rank.rank}", rank.run, rank.rank) for rank in scenario.world.ranks
    ]
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=12)
    scenario.never()
    for gpu in scenario.world.devices:
        if gpu.run == "capped":
            gpu.gauges["gpu_clock_hertz{clock=sm}"] = 1.5
        elif gpu.run == "launches":
            gpu.gauges.update(gpu_sm_activity_ratio=0.125, gpu_tensor_activity_ratio=0.0625)
        elif gpu.run == "floats":
            gpu.gauges.update(gpu_tensor_activity_ratio=0)
        elif gpu.run == "stalled":
            gpu.gauges.update(gpu_sm_activity_ratio=0, gpu_tensor_activity_ratio=0)
    scenario.world.training.discard("stalled")
    scenario.after(minutes=20)
    scenario.fires(
        Firing("TrainingStalled", run="stalled", more=(("training_source", "rank"),)),
        Firing("TrainingGpuPowerCapped", run="capped"),
        Firing("TrainingGpuUnderused", run="launches"),
        Firing("TrainingGpuTensorIdle", run="floats"),
    )
    for gpu in scenario.world.devices:
        gpu.gauges = healthy_gpu(gpu.uuid).gauges
    scenario.world.training.add("stalled")
    scenario.after(minutes=20)
    scenario.silent()
    return scenario


def next_run() -> Scenario:
    """A fault is the rank's that uses the GPU now; who used it until a minute ago has ended."""
    scenario = Scenario([*ranks(4, run="first"), *ranks(4, run="second")], tick=15)
    first, second = scenario.world.ranks[:4], scenario.world.ranks[4:]
    for rank in scenario.world.ranks:
        rank.has_exporter = False
        rank.alive = rank in first
    scenario.world.devices += [healthy_gpu(f"GPU-{rank.rank}", rank.run, rank.rank) for rank in first]
    scenario.after(minutes=6)
    for before, now in zip(first, second, strict=True):
        before.finish()
        now.alive, now.start = True, scenario.world.now
    for gpu in scenario.world.devices:
        gpu.run = "second"
    scenario.after(minutes=4)
    scenario.never()
    for gpu in scenario.world.devices:
        gpu.gauges["gpu_row_remap_failed"] = 1
    scenario.after(minutes=6)
    scenario.fires(
        *(
            Firing(
                "TrainingGpuRowRemap", number, run="second", host="host-a",
                more=(("uuid", f"GPU-{number}"), ("state", "failed")),
            )
            for number in range(4)
        )
    )  # fmt: skip
    return scenario


PLAYS: tuple[Play, ...] = (health, use, next_run)
