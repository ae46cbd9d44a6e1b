"""Drivers that do not match, GPUs that do nothing, GPUs that something holds."""

from __future__ import annotations

from plays.gpu import healthy_gpu
from scenario import RUNBOOKS, Firing, Play, Scenario, ranks
from world import Device, Rank

FAMILIES = ("gpu",)
EVERY = 60

MISMATCH = "laggard_exporter_nvml_status{status=version_mismatch}"


def _driver(rank: Rank, version: str) -> None:
    rank.gauges = {f"training_run_info{{driver_version={version}}}": 1}


def drivers() -> Scenario:
    """Tells of a run on two versions of the driver, by the ranks' word, until all have one; not of two runs on one."""
    scenario = Scenario([*ranks(4, per_host=2), *ranks(2, run="run-b"), *ranks(2, run="run-c")], tick=30)
    for rank in scenario.world.ranks:
        _driver(rank, "570.86.15" if rank.run == "run-c" else "580.95.05")
    scenario.after(minutes=5)
    scenario.never()
    _driver(scenario[3], "570.86.15")
    scenario.after(minutes=9)
    scenario.never()
    scenario.after(minutes=4)
    alert = Firing("TrainingDriverMismatch", more=(("training_cause", "versions"),))
    scenario.fires(alert)
    scenario.says(
        alert,
        title="GPU drivers do not match.",
        summary="Run run-a runs on 2 versions of the NVIDIA driver.",
        description="The ranks of run run-a run on 2 versions of the NVIDIA driver: 570.86.15 (1 of its ranks), "
        "580.95.05 (3 of its ranks). Mixed driver versions are untested with NCCL and may perform differently.",
        recommendation="Bring the hosts with the rarer version to that of the others before the next start, or keep "
        "them apart by a label of the scheduler.",
        runbook_url=f"{RUNBOOKS}/TrainingDriverMismatch.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[3].lost = True
    scenario.after(seconds=30)
    scenario.fires(alert)
    scenario[3].lost = False
    _driver(scenario[3], "580.95.05")
    scenario.after(minutes=4)
    scenario.silent()
    return scenario


def drivers_of_hosts() -> Scenario:
    """Where ranks do not see their driver, their hosts' exporters do; a host without ranks does not count."""
    scenario = Scenario([*ranks(4, per_host=2), *ranks(2, run="run-b")], tick=30)
    for host, version in {"host-a": "580.95.05", "host-b": "570.86.15", "host-c": "550.54.15"}.items():
        gauge = f"gpu_driver_info{{driver={version},nvml=13.{version},cuda=13.0}}"
        scenario.world.devices.append(Device(host, label="host_name", gauges={gauge: 1}))
    scenario.after(minutes=16)
    scenario.fires(Firing("TrainingDriverMismatch", more=(("training_cause", "versions"),)))
    scenario.value(
        'run_driver:training_ranks:count{training_run="run-a"} > bool 1',
        {f'{{training_run="run-a", training_driver_version="{version}"}}': 1 for version in ("580.95.05", "570.86.15")},
    )
    return scenario


def library() -> Scenario:
    """Tells of the host on which NVML refuses its library, and of its run, until it is reloaded; not of no driver."""
    scenario = Scenario(ranks(4, per_host=2), tick=30)
    hosts = [Device(f"host-{name}", label="host_name", gauges={MISMATCH: 0}) for name in "abc"]
    absent = Device(
        "host-d", label="host_name", gauges={"laggard_exporter_nvml_status{status=driver_not_loaded}": 1, MISMATCH: 0}
    )
    scenario.world.devices += [*hosts, absent]
    scenario.after(minutes=5)
    hosts[1].gauges[MISMATCH] = 1
    scenario.after(minutes=1.5)
    scenario.never()
    scenario.after(minutes=3.5)
    cause = (("training_cause", "library"),)
    used = Firing("TrainingDriverMismatch", host="host-b", more=cause)
    scenario.fires(used)
    scenario.says(
        used,
        title="GPU drivers do not match.",
        summary="Host host-b (run run-a) has loaded a driver of another version than its NVML library.",
        description="The driver that host host-b has loaded is of another version than its libraries, so NVML "
        "refuses all calls. Ranks of run run-a go on, but their GPUs are not monitored, and a process "
        "that starts there fails.",
        recommendation="Drain the host, then reload the driver's kernel modules or reboot. Hold the driver's packages "
        "back from unattended upgrades.",
        runbook_url=f"{RUNBOOKS}/TrainingDriverMismatch.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    hosts[2].gauges[MISMATCH] = 1
    scenario.after(minutes=5)
    found = (used, Firing("TrainingDriverMismatch", run="", host="host-c", more=cause))
    scenario.fires(*found)
    hosts[1].lost = True
    scenario.after(seconds=30)
    scenario.fires(*found)
    hosts[1].lost = False
    for host in hosts:
        host.gauges[MISMATCH] = 0
    scenario.after(minutes=3)
    scenario.silent()
    return scenario


def idle() -> Scenario:
    """Names the GPU on which nothing runs while its rank makes steps, until something does; not one at little work."""
    scenario = Scenario([*ranks(4), *ranks(2, run="stands")], tick=30)
    gpus = [healthy_gpu(f"{rank.run}-{rank.rank}", rank.run, rank.rank) for rank in scenario.world.ranks]
    scenario.world.devices += gpus
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.after(minutes=12)
    scenario.never()
    gpus[1].gauges["gpu_utilization_ratio"] = 0
    gpus[2].gauges["gpu_utilization_ratio"] = 1 / 16
    # A run that makes no steps is another alert's business.
    scenario.world.training.discard("stands")
    for gpu in gpus[4:]:
        gpu.gauges["gpu_utilization_ratio"] = 0
    scenario.after(minutes=13)
    scenario.value('count(ALERTS{alertname="TrainingGpuIdle", alertstate="firing"})', {})
    scenario.after(minutes=14)
    alert = Firing("TrainingGpuIdle", 1, host="host-a", more=(("uuid", "run-a-1"),))
    stalled = Firing("TrainingStalled", run="stands", source="rank")
    scenario.fires(alert, stalled)
    gpus[1].lost = True
    scenario.after(seconds=30)
    scenario.fires(alert, stalled)
    gpus[1].lost = False
    scenario.says(
        alert,
        title="A GPU of a training run is idle.",
        summary="GPU run-a-1 (rank 1 of run run-a on host-a) is idle while its rank trains.",
        description="GPU run-a-1 (rank 1 of run run-a on host host-a) has been idle for at least ten minutes, "
        "though its rank makes steps. Its highest utilization in the last five minutes was 0%.",
        recommendation="Check that the model is on the device: a rank that finds no GPU, or asks for another, trains "
        "on the processor. Else give the GPU back.",
        runbook_url=f"{RUNBOOKS}/TrainingGpuIdle.md",
        dashboard_url="/d/laggard-gpu?var-uuid=run-a-1",
    )
    gpus[1].gauges["gpu_utilization_ratio"] = 1 / 2
    scenario.after(minutes=10)
    scenario.fires(stalled)
    return scenario


def held() -> Scenario:
    """Tells of memory that is taken without work or run, until it is free; not of a context alone, nor of work."""
    scenario = Scenario(ranks(1), tick=60)
    names = ("held", "context", "works", "rank")
    gpus = [healthy_gpu(name, run="run-a" if name == "rank" else "", rank=0) for name in names]
    for gpu in gpus:
        gpu.gauges |= {"gpu_memory_used_bytes": 1 / 2, "gpu_memory_free_bytes": 1 / 2, "gpu_utilization_ratio": 0}
    gpus[1].gauges |= {"gpu_memory_used_bytes": 1 / 64, "gpu_memory_free_bytes": 63 / 64}
    gpus[2].gauges["gpu_utilization_ratio"] = 1 / 4
    gpus[3].gauges["gpu_utilization_ratio"] = 1
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    scenario.world.devices += gpus
    scenario.after(minutes=29)
    scenario.never()
    scenario.after(minutes=11)
    alert = Firing("TrainingGpuHeld", run="", more=(("uuid", "held"),))
    scenario.fires(alert)
    gpus[0].lost = True
    scenario.after(minutes=1)
    gpus[0].lost = False
    scenario.after(minutes=5)
    scenario.fires(alert)
    gpus[0].gauges["gpu_memory_used_bytes"] = 1 / 64
    scenario.after(minutes=12)
    scenario.silent()
    return scenario


PLAYS: tuple[Play, ...] = (drivers, drivers_of_hosts, library, idle, held)
