"""What a run makes of its GPUs, and what they cost."""

from __future__ import annotations

from scenario import Play, Scenario, ranks
from world import RUN, Device

FAMILIES = ("goodput", "gpu", "pipeline")

ENERGY = "gpu_energy_joules_total"
FLOPS = "training_flops_total"
SAMPLES = "training_samples_total"


def cost() -> Scenario:
    """Utilization of the model, energy, money and carbon follow from what is known, and are absent where it is not."""
    scenario = Scenario([*ranks(2), *ranks(2, run="unknown")], tick=60)
    scenario.given("laggard_threshold", 3.6, name="gpu_hour_price")
    scenario.threshold("carbon_grams_per_kwh", 400)
    scenario.threshold("power_overhead", 1.5)
    for rank in scenario.world.ranks:
        rank.has_exporter = False
        rank.counters = {FLOPS: 4e14, SAMPLES: 64}
        name = "NVIDIA H100 80GB HBM3" if rank.run == RUN or rank.rank == 0 else "Something new"
        scenario.world.devices.append(
            Device(f"{rank.run}-{rank.rank}", rank.run, rank.rank, {f"gpu_info{{name={name}}}": 1}, {ENERGY: 640})
        )
    # One of two GPUs does nothing for a quarter of the time.
    scenario.world.devices[0].gauges["gpu_utilization_ratio"] = 3 / 4
    scenario.world.devices[1].gauges["gpu_utilization_ratio"] = 1
    scenario.after(minutes=12)
    mine, theirs = f'{{training_run="{RUN}"}}', '{training_run="unknown"}'
    scenario.value("round(run:training_mfu:ratio, 0.001)", {mine: 0.404})
    scenario.value("round(run:gpu_idle_seconds:rate, 0.001)", {mine: 0.25})
    scenario.value("round(run:training_cost:rate * 3600, 0.001)", {mine: 7.2, theirs: 7.2})
    scenario.value("round(run:training_sample_energy_joules:mean, 0.001)", {mine: 10, theirs: 10})
    scenario.value("round(run:training_carbon_grams:rate * 3600, 0.1)", {mine: 768})
    return scenario


PLAYS: tuple[Play, ...] = (cost,)
