"""All families of rules together over one run with all signals: nothing but what is wrong is told."""

from __future__ import annotations

from plays.gpu import healthy_gpu
from plays.memory import ALLOCATED, DEVICE_LIMIT, HOST_LIMIT, PEAK, RESERVED, RESIDENT
from scenario import Play, Scenario, ranks
from slow import make_slow, straggler

EVERY = 60

GIB = 2.0**30


def one_fault() -> Scenario:
    """A healthy run is healthy in every respect; a slow rank is a straggler, and no other alert fires beside it."""
    scenario = Scenario(ranks(4), tick=30)
    for rank in scenario.world.ranks:
        rank.fetch = 0.1
        rank.gauges = {
            ALLOCATED: 32 * GIB, RESERVED: 36 * GIB, PEAK: 48 * GIB, DEVICE_LIMIT: 80 * GIB, RESIDENT: 8 * GIB,
            HOST_LIMIT: 256 * GIB, "training_loss": 2, "training_gradient_norm": 1,

        } | {
            f"training_phase_duration_quantile_seconds{{phase={phase},quantile={name}}}": seconds * factor
            for phase, seconds in rank.work.items()
            for name, factor in {"p50": 1, "p95": 1.1, "p99": 1.2}.items()
        }  # fmt: skip
        rank.counters = {
            "training_gc_duration_seconds_total{gc_generation=2}": 1 / 256,
            "training_dataloader_worker_cpu_time_seconds_total": 0.5,
            "training_samples_total": 64,
        }
        scenario.world.devices.append(healthy_gpu(f"GPU-{rank.rank}", rank.run, rank.rank))
    scenario.after(minutes=20)
    scenario.never()
    make_slow(scenario[2], 1.4, "backward")
    scenario.after(minutes=12)
    scenario.fires(straggler(2, "backward"))
    return scenario


PLAYS: tuple[Play, ...] = (one_fault,)
