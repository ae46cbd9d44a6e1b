"""TrainingThermalSlowdown and TrainingPowerSlowdown: what holds a straggler's GPU back."""

from __future__ import annotations

from scenario import RUNBOOKS, Firing, Play, Scenario, ranks
from slow import make_slow, straggler
from world import RUN, Device

FAMILIES = ("shape", "process", "gpu")
EVERY = 60


def _slowdown(cause: str, rank: int = 3) -> Firing:
    return Firing(f"Training{cause}Slowdown", rank, host="host-a", more=(("uuid", f"GPU-{rank}"),))


def _throttled(reason: str) -> Firing:
    return Firing("TrainingGpuThrottled", 3, host="host-a", more=(("uuid", "GPU-3"), ("reason", reason)))


def _hot(clock: float = 1.25, temperature: float = 88, **held: float) -> Scenario:
    """Return a run of four with a slow last rank, whose GPU is like this; the power limit holds all a little."""
    scenario = Scenario(ranks(4))
    for rank in scenario.world.ranks:
        gauges = {"gpu_clock_hertz{clock=sm}": 1.5, "gpu_temperature_celsius{sensor=gpu}": 60.0}
        counters = {_held("sw_power_cap"): 0.25, **dict.fromkeys(map(_held, held), 0.0)}
        scenario.world.devices.append(Device(f"GPU-{rank.rank}", RUN, rank.rank, gauges, counters))
    scenario.after(minutes=3)
    make_slow(scenario[3], 1.3, "forward", "backward")
    gpu = scenario.world.devices[3]
    gpu.gauges.update({"gpu_clock_hertz{clock=sm}": clock, "gpu_temperature_celsius{sensor=gpu}": temperature})
    gpu.counters.update({_held(reason): share for reason, share in held.items()})
    return scenario


def _held(reason: str) -> str:
    return f"gpu_clock_event_seconds_total{{reason={reason}}}"


def thermal() -> Scenario:
    """Names heat as the cause of a slow rank, until it is well again."""
    scenario = _hot(sw_thermal=0.5)
    scenario.after(minutes=6.5)
    scenario.fires(straggler(3, "mixed"), _slowdown("Thermal"), _throttled("sw_thermal"))
    scenario.says(
        _slowdown("Thermal"),
        title="One rank is slow because heat holds back its GPU, and the others wait for it.",
        summary="Rank 3 of run run-a on host-a takes 1.30 times as long as its peers, because heat holds back its "
        "GPU GPU-3.",
        cost="21.26% of each step",
        description="Rank 3 of run run-a on host host-a takes 1.30 times as long as its peers for its own work in "
        "a step. Its GPU GPU-3 is held back more than theirs. Heat held down its clocks for 50% of the"
        " last five minutes. Its temperature is 88 degrees Celsius.",
        recommendation="Check the cooling of the host: fans, inlet temperature, dust, a neighbour that heats it. Until "
        "then, lower the power limit of the whole run's GPUs, or move the rank.",
        runbook_url=f"{RUNBOOKS}/TrainingThermalSlowdown.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    scenario[3].lost = scenario[3].exporter_lost = scenario.world.devices[3].lost = True
    scenario.after(seconds=15)
    scenario.fires(straggler(3, "mixed"), _slowdown("Thermal"), _throttled("sw_thermal"))
    scenario[3].lost = scenario[3].exporter_lost = scenario.world.devices[3].lost = False
    scenario.after(minutes=1)
    scenario.fires(straggler(3, "mixed"), _slowdown("Thermal"), _throttled("sw_thermal"))
    make_slow(scenario[3], 1, "forward", "backward")
    scenario.after(minutes=3.25)
    scenario.fires(_throttled("sw_thermal"))
    return scenario


def thermal_without_seconds() -> Scenario:
    """Where the driver counts no seconds of heat, a hot GPU with a low clock is evidence enough."""
    scenario = _hot()
    scenario.after(minutes=6.5)
    scenario.fires(straggler(3, "mixed"), _slowdown("Thermal"))
    return scenario


def power() -> Scenario:
    """Names power as the cause of a slow rank."""
    scenario = _hot(temperature=61, hw_power_brake=0.75)
    scenario.after(minutes=6.5)
    scenario.fires(straggler(3, "mixed"), _slowdown("Power"), _throttled("hw_power_brake"))
    scenario.says(
        _slowdown("Power"),
        title="One rank is slow because power holds back its GPU, and the others wait for it.",
        summary="Rank 3 of run run-a on host-a takes 1.30 times as long as its peers, because power holds back its"
        " GPU GPU-3.",
        cost="21.26% of each step",
        description="Rank 3 of run run-a on host host-a takes 1.30 times as long as its peers for its own work in "
        "a step. Its GPU GPU-3 is held back more than theirs. Power held down its clocks for 75% of "
        "the last five minutes.",
        recommendation="Compare the GPU's power limit with that of its peers, and look at the host's power supplies "
        "and the rack's power cap: a power brake comes from outside the GPU.",
        runbook_url=f"{RUNBOOKS}/TrainingPowerSlowdown.md",
        dashboard_url="/d/laggard-run?var-training_run=run-a",
    )
    return scenario


def power_though_hot() -> Scenario:
    """What the clock events say outweighs a temperature."""
    scenario = _hot(temperature=88, hw_power_brake=0.75)
    scenario.after(minutes=6.5)
    scenario.fires(straggler(3, "mixed"), _slowdown("Power"), _throttled("hw_power_brake"))
    return scenario


def near_misses() -> Scenario:
    """A hot GPU with a full clock, held by heat for a twentieth of the time, is not why its rank is slow."""
    scenario = _hot(clock=1.5, temperature=88, sw_thermal=0.05)
    scenario.after(minutes=6.5)
    scenario.fires(straggler(3, "mixed"))
    return scenario


def hot_but_not_slow() -> Scenario:
    """A hot GPU that makes nobody wait is no slowdown."""
    scenario = _hot(sw_thermal=0.5)
    make_slow(scenario[3], 1, "forward", "backward")
    scenario.after(minutes=6.5)
    scenario.fires(_throttled("sw_thermal"))
    return scenario


PLAYS: tuple[Play, ...] = (thermal, thermal_without_seconds, power, power_though_hot, near_misses, hot_but_not_slow)
