"""The same ten faults by each exporter of GPUs: the same verdict, or a stated unknown (``gpu_sources``)."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_sources import FAULTS, GIB, HEALTHY, SOURCES, Source
from scenario import Firing, Play, Scenario, ranks
from world import Device, Rank

OPTIONAL = ("optional/adapter-all-smi", "optional/adapter-gaudi", "optional/adapter-intel")
FAMILIES = ("amd", "dcgm", "gpu", "nvidia-smi", *OPTIONAL, "telemetry")
EVERY = 60

#: Number of a GPU that no run uses.
HELD = 99


def _digits(number: int) -> str:
    return f"{number:012x}"


def _add(scenario: Scenario, source: Source, rank: Rank | None, number: int, driver: str = "580.1") -> Device:
    """Return one more healthy GPU, of a rank or of nobody."""
    host = rank.host if rank else "host-z"
    device = Device(
        source.identity.format(_digits(number)), label=source.label, has_workload=source.knows_ranks,
        run=rank.run if rank else "", rank=rank.rank if rank else None, more=source.labels(number, driver, host),
    )  # fmt: skip
    if source.knows_ranks:
        device.gauges["gpu_up"] = 1
    if rank:
        rank.has_exporter = False
        rank.hw_id = "" if source.knows_ranks or not source.names_ranks else source.of_rank(_digits(number))
    _show(source, device, HEALTHY)
    device.gauges |= source.xid(None) if source.xid else {}
    scenario.world.devices.append(device)
    return device


def _show(source: Source, device: Device, facts: Mapping[str, float]) -> None:
    for fact, value in facts.items():
        shown = source.shown.get(fact)
        if shown:
            (device.counters if shown.counted else device.gauges)[shown.series] = shown.unit(value)


def _lose(source: Source, device: Device, now: float) -> None:
    """Let a GPU fall off the bus: what the source shows of the error and of a lost GPU stays."""
    kept = source.xid(now) if source.xid else {}
    device.gauges, device.counters = {**kept, **source.gone}, {}


def faults(source: Source) -> Scenario:
    """Play all faults at once, each on a GPU or in a run of its own, beside GPUs that are well."""
    on_gpus = [name for name, fault in FAULTS.items() if not fault.of_run and name != "held"]
    everyone = [*ranks(len(on_gpus) + 4, per_host=99), *ranks(2, run="capped"), *ranks(2, per_host=1, run="driver")]
    scenario = Scenario(everyone, tick=30)
    gpus = {
        (rank.run, rank.rank): _add(
            scenario, source, rank, number, "580.2" if (rank.run, rank.rank) == ("driver", 1) else "580.1"
        )
        for number, rank in enumerate(everyone)
    }
    held = _add(scenario, source, None, HELD)
    for host, driver in (("host-a", "580.1"), ("host-b", "580.2")):
        for series, value in source.of_host(driver, host).items():
            name, _, labels = series.removesuffix("}").partition("{")
            scenario.given(name, value, **dict(pair.split("=") for pair in labels.split(",")))
    scenario.after(minutes=12)
    for (run, number), device in gpus.items():
        name = run if run in FAULTS else on_gpus[number] if number < len(on_gpus) else ""
        if name == "lost":
            _lose(source, device, scenario.world.now)
        elif name:
            _show(source, device, FAULTS[name].changes)
    _show(source, held, FAULTS["held"].changes)
    scenario.after(minutes=48)
    found = [_verdict(source, name, on_gpus) for name in FAULTS if name not in source.unknown]
    if source.xid:
        found.append(_of_gpu(source, "TrainingGpuXidCritical", on_gpus.index("lost"), xid="79"))
    scenario.fires(*found)
    return scenario


def _verdict(source: Source, name: str, on_gpus: list[str]) -> Firing:
    fault = FAULTS[name]
    if fault.of_run:
        return Firing(fault.alert, run=name, more=tuple(fault.labels.items()))
    if name == "held":
        return Firing(fault.alert, run="", more=(("uuid", source.gpu(_digits(HELD))),))
    reason = {"reason": source.reason} if name == "hot" else {}
    return _of_gpu(source, fault.alert, on_gpus.index(name), **fault.labels, **reason)


def _of_gpu(source: Source, alert: str, number: int, **labels: str) -> Firing:
    if not source.names_ranks:
        return Firing(alert, run="", more=(("uuid", source.gpu(_digits(number))), *labels.items()))
    return Firing(alert, number, host="host-a", more=(("uuid", source.gpu(_digits(number))), *labels.items()))


def _play(name: str, source: Source) -> Play:
    def play() -> Scenario:
        return faults(source)

    play.__name__ = name.replace("-", "_")
    play.__doc__ = f"What {source.title} shows of ten faults gives the same verdicts as of ours, but what is stated."
    return play


def amd_without_uuids() -> Scenario:
    """Where AMD's exporter names no UUID a fault has a GPU and no rank, and no GPU counts as held."""
    everyone = ranks(2)
    scenario = Scenario(everyone, tick=30)
    amd = SOURCES["amd"]
    for rank in everyone:
        rank.has_exporter = False
        rank.hw_id = amd.of_rank(_digits(rank.rank))
        more = f"hostname={rank.host},card_model=MI300X"
        device = Device(str(rank.rank), label="gpu_id", more=more)
        _show(amd, device, HEALTHY)
        scenario.world.devices.append(device)
    hot, idle = scenario.world.devices
    scenario.after(minutes=12)
    scenario.never()
    _show(amd, hot, FAULTS["hot"].changes)
    _show(amd, idle, FAULTS["held"].changes)
    scenario.after(minutes=48)
    scenario.fires(Firing("TrainingGpuThrottled", run="", more=(("uuid", "host-a/0"), ("reason", "hw_thermal"))))
    return scenario


def tiles_and_cards() -> Scenario:
    """A GPU of Intel's with two tiles is one GPU, and a card with two GPUs is none."""
    scenario = Scenario(ranks(1), tick=30)
    gpu = Device(
        "01000000-0000-0000-0000-4d", label="uuid", more="dev_name=Max 1550",
        gauges={
            "xpum_power_watts": 512, "xpum_memory_used_bytes{sub_dev=0}": GIB, "xpum_memory_used_bytes{sub_dev=1}": GIB,
            "xpum_frequency_mhz{location=gpu,type=actual,sub_dev=0}": 1600,
            "xpum_frequency_mhz{location=gpu,type=actual,sub_dev=1}": 1500,
            "xpum_frequency_mhz{location=gpu,type=request,sub_dev=1}": 500,
        },
    )  # fmt: skip
    card = Device("2147483649", label="card", gauges={"xpum_power_watts": 1024})
    scenario.world.devices += [gpu, card]
    scenario.after(minutes=2)
    for name, value in (("gpu_power_watts", 512.0), ("gpu_memory_used_bytes", 2 * GIB), ("gpu_clock_hertz", 1.5e9)):
        scenario.value(f"max by (uuid) ({name})", {'{uuid="01000000-0000-0000-0000-4d"}': value})
    scenario.never()
    return scenario


def rows_of_gaudi() -> Scenario:
    """Rows of a Gaudi that wait to be replaced are a verdict, and zero of them none."""
    scenario = Scenario(ranks(1), tick=30)
    facts = {"habanalabs_device_config": 1, "habanalabs_pending_rows_state": 0}
    gaudi = [Device(f"01P4-HL2080A0-{number}", label="UUID", gauges=dict(facts)) for number in range(2)]
    scenario.world.devices += gaudi
    scenario.after(minutes=12)
    scenario.never()
    gaudi[1].gauges["habanalabs_pending_rows_state"] = 1
    scenario.after(minutes=12)
    scenario.fires(Firing("TrainingGpuRowRemap", run="", more=(("uuid", "01P4-HL2080A0-1"), ("state", "pending"))))
    return scenario


def unread() -> Scenario:
    """Exporters with names that nobody knows are an alert, until a field is known or ours shows the GPU."""
    scenario = Scenario(ranks(1), tick=30)
    renamed = [
        Device(
            f"GPU-{number}", label="UUID", more=f"gpu={number},modelName=A,hostname=host-a",
            gauges={"DCGM_FI_DEV_GPU_HEAT_KELVIN": 333, "DCGM_FI_DEV_BOARD_POWER_KILOWATTS": 0.75},
        )
        for number in range(3)
    ]  # fmt: skip
    # What has no GPU of its own is none that is unread: links, switches, processors.
    links = Device("", label="nvlink", more="gpu=7,gpu_uuid=GPU-7", gauges={"DCGM_FI_DEV_NVLINK_ERRORS{nvlink=1}": 0})
    switch = Device("1", label="nvswitch", gauges={"DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT": 40})
    amd = Device("", label="gpu_uuid", more="hostname=host-b", gauges={"amd_gpu_nodes_total": 8})
    scenario.world.devices += [*renamed, links, switch]
    dcgm, prefixed = (
        Firing("TrainingTelemetryDown", run="", source="gpus", more=(("exporter", name),))
        for name in ("dcgm-exporter", "device-metrics-exporter")
    )
    scenario.after(minutes=12)
    scenario.fires(dcgm)
    scenario.says(
        dcgm,
        title="No field of a GPU exporter is known to the rules.",
        summary="dcgm-exporter is scraped, but none of its fields is known to the rules.",
        description="dcgm-exporter exports 3 GPUs or hosts under names that the rules do not know. Faults of these"
        " GPUs are not detected.",
        recommendation="Take a prefix of its names away (MetricsFieldPrefix), export the fields that docs/gpus.md "
        "lists, or load a rule pack that knows its release.",
        runbook_url="https://github.com/laggard-project/laggard/blob/main/rules/runbooks/TrainingTelemetryDown.md",
        dashboard_url="/d/laggard-telemetry",
    )
    renamed[0].gauges["DCGM_FI_DEV_GPU_TEMP_CELSIUS"] = 60
    renamed[1].gauges["DCGM_FI_DEV_FB_USED_BYTES"] = GIB
    scenario.world.devices.append(Device("GPU-2", gauges={"gpu_up": 1}))
    scenario.after(minutes=12)
    scenario.silent()
    scenario.world.devices.append(amd)
    scenario.after(minutes=12)
    scenario.fires(prefixed)
    amd.gauges = {"gpu_nodes_total": 8, "gpu_gfx_activity{gpu_id=0}": 100}
    scenario.after(minutes=12)
    scenario.silent()
    return scenario


PLAYS: tuple[Play, ...] = (
    *(_play(name, source) for name, source in SOURCES.items()),
    amd_without_uuids,
    tiles_and_cards,
    rows_of_gaudi,
    unread,
)
