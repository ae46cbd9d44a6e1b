"""Losses and gradients that go astray."""

from __future__ import annotations

from scenario import Firing, Play, Scenario, ranks
from world import Rank

FAMILIES = ("memory",)
EVERY = 60

LOSS, NORM = "training_loss", "training_gradient_norm"
BAD_LOSS = "training_nonfinite_total{value=loss}"
BAD_GRADIENT = "training_nonfinite_total{value=gradient}"
SKIPPED = "training_steps_skipped_total"


def _log(rank: Rank, noise: float, *, astray: bool) -> None:
    """Let a rank log what its run is named after."""
    jump = float(astray)
    match rank.run:
        case "noisy":
            rank.gauges = {LOSS: 2 + 2 * noise, NORM: 1 + 4 * abs(noise)}
        case "declines":
            rank.gauges[LOSS] -= 1 / 128
        case "jumps":
            rank.gauges[LOSS] = 2 + noise + 1.5 * jump
        case "explodes":
            rank.gauges[NORM] = 1 + noise + 19 * jump
        case "nan":
            rank.counters[BAD_LOSS] = jump / 64
        case "gradients":
            rank.counters[BAD_GRADIENT] = jump / 64
        case "scaler":
            rank.counters[BAD_GRADIENT] = rank.counters[SKIPPED] = jump / 64
        case _:
            pass


def astray() -> Scenario:
    """Each kind has its alert, over a lost scrape too, and loses it; noise, a decline and a scaler have none."""
    names = ("nan", "gradients", "scaler", "jumps", "explodes", "noisy", "declines", "flat")
    scenario = Scenario([rank for name in names for rank in ranks(2, run=name)], tick=30)
    for rank in scenario.world.ranks:
        rank.has_exporter = False
        rank.gauges = {LOSS: 2.0, NORM: 1.0}
        rank.counters = {BAD_LOSS: 0, BAD_GRADIENT: 0}

    def go_on(minutes: int, *, astray: bool = False) -> None:
        for half in range(2 * minutes):
            for rank in scenario.world.ranks:
                _log(rank, (half * 7 % 16 - 8) / 64, astray=astray)
            scenario.after(seconds=30)

    go_on(30)
    scenario.never()
    go_on(9, astray=True)
    found = (
        Firing("TrainingLossNotFinite", run="nan", more=(("training_value", "loss"),)),
        Firing("TrainingGradientNotFinite", run="gradients", more=(("training_value", "gradient"),)),
        Firing("TrainingLossSpike", run="jumps"),
        Firing("TrainingGradientNormSpike", run="explodes"),
    )
    scenario.fires(*found)
    for rank in scenario.world.ranks:
        rank.lost = True
    scenario.after(seconds=30)
    scenario.fires(*found)
    for rank in scenario.world.ranks:
        rank.lost = False
    go_on(1, astray=True)
    scenario.fires(*found)
    go_on(12)
    scenario.silent()
    return scenario


PLAYS: tuple[Play, ...] = (astray,)
