"""What takes an hour to see: stale checkpoints, tails, epochs that start slowly, regressions."""

from __future__ import annotations

from scenario import Firing, Play, Scenario, ranks
from world import WORK

FAMILIES = ("pipeline", "shape")
EVERY = 120

SAVED = "training_checkpoint_last_save_timestamp_seconds"
FIRST_BATCH = "training_dataloader_first_batch_duration_seconds_sum"
EPOCHS = "training_dataloader_first_batch_duration_seconds_count"

STALE = Firing("TrainingCheckpointStale", phase="checkpoint", run="saves")
JITTER = Firing("TrainingJitter", phase="forward", run="jitters")
TAIL = Firing("TrainingLongTail", phase="data", run="trails")
EPOCH = Firing("TrainingEpochStartSlow", phase="data", run="restarts-epochs")
PAST = Firing("TrainingRegression", run="slows-down", more=(("training_reference", "past"),))
EARLIER = Firing("TrainingRegression", run="second", more=(("training_reference", "earlier_runs"),))


def _runs(*names: str) -> Scenario:
    scenario = Scenario([rank for name in names for rank in ranks(2, run=name)], tick=60)
    for rank in scenario.world.ranks:
        rank.has_exporter = False
    return scenario


def _quantiles(scenario: Scenario, run: str, phase: str, seconds: tuple[float, float, float], *only: int) -> None:
    """Set what the middle step, one in twenty and one in a hundred need in a phase, on all ranks or some."""
    for rank in scenario.world.ranks:
        if rank.run == run:
            for name, value in zip(("p50", "p95", "p99"), seconds, strict=True):
                high = value if rank.rank in (only or (rank.rank,)) else seconds[0]
                rank.gauges[f"training_phase_duration_quantile_seconds{{phase={phase},quantile={name}}}"] = high


def _save(scenario: Scenario, *runs: str) -> None:
    for rank in scenario.world.ranks:
        if rank.run in runs and rank.rank == 0:
            rank.gauges[SAVED] = scenario.world.now


def _own(scenario: Scenario, run: str, factor: float) -> None:
    for rank in scenario.world.ranks:
        if rank.run == run:
            rank.work["forward"] = 0.05 + 0.18 * (factor - 1)


def slow_trends() -> Scenario:
    """Each is told once its history suffices, next to a run that stays just within the limit, and ends when mended."""
    faulty = ("saves", "jitters", "trails", "restarts-epochs", "slows-down")
    near = ("saves-late", "saved-once", "wanders")
    scenario = _runs(*faulty, *near)
    _save(scenario, "saved-once")

    def healthy() -> None:
        _quantiles(scenario, "jitters", "forward", (0.05, 0.06, 0.07))
        _quantiles(scenario, "trails", "data", (0.01, 0.02, 0.05))
        # Within the limits of 0.06 s and 0.2 s; and one rank of two that varies is not the middle one.
        _quantiles(scenario, "wanders", "forward", (0.05, 0.1, 0.2))
        _quantiles(scenario, "wanders", "backward", (0.09, 0.19, 0.2), 1)
        for rank in scenario.world.ranks:
            if rank.run in ("restarts-epochs", "wanders"):
                # Four epochs an hour.
                rank.counters[EPOCHS] = 1 / 1024
                rank.counters[FIRST_BATCH] = 1 / 32
        _own(scenario, "slows-down", 1)

    healthy()
    for _ in range(13):
        _save(scenario, "saves", "saves-late")
        scenario.after(minutes=10)
    scenario.never()
    _quantiles(scenario, "jitters", "forward", (0.05, 0.13, 0.14))
    _quantiles(scenario, "trails", "data", (0.01, 0.02, 0.3), 1)
    _own(scenario, "slows-down", 1.08)
    _own(scenario, "wanders", 1.04)
    for rank in scenario.world.ranks:
        if rank.run == "restarts-epochs":
            rank.counters[FIRST_BATCH] = 1 / 8
    for _ in range(2):
        scenario.after(minutes=15)
        _save(scenario, "saves-late")
    scenario.after(minutes=15)
    scenario.fires(STALE, JITTER, TAIL, EPOCH, PAST)
    healthy()
    _save(scenario, "saves")
    scenario.after(minutes=7)
    scenario.fires(EPOCH, PAST)
    for _ in range(3):
        _save(scenario, "saves", "saves-late")
        scenario.after(minutes=10)
    scenario.fires(EPOCH)
    for rank in scenario.world.ranks:
        rank.finish()
    scenario.after(minutes=6)
    scenario.silent()
    return scenario


def earlier_runs() -> Scenario:
    """A run of a workload is compared with an earlier one of as many ranks, and with no other."""
    first, second = ranks(2, run="first"), ranks(2, run="second")
    fewer, other = ranks(1, run="fewer"), ranks(2, run="other")
    alike = ranks(2, run="alike")
    scenario = Scenario([*first, *second, *fewer, *other, *alike], tick=60)
    for rank in scenario.world.ranks:
        rank.has_exporter = False
        rank.workload = "translate" if rank in other else "pretrain"
        rank.has_metrics = rank in first
    scenario.after(minutes=40)
    for rank in scenario.world.ranks:
        rank.has_metrics = rank not in first
        rank.start = scenario.world.now
    for run, factor in {"second": 1.08, "fewer": 1.3, "other": 1.3, "alike": 1.03}.items():
        _own(scenario, run, factor)
    scenario.after(minutes=15)
    scenario.never()
    scenario.after(minutes=18)
    scenario.fires(EARLIER)
    return scenario


def becomes_longer() -> Scenario:
    """A step that becomes longer and stays so is no jitter, though its last 256 steps hold both kinds for a while."""
    scenario = _runs("grows")
    for rank in scenario.world.ranks:
        rank.work = {phase: 10 * seconds for phase, seconds in WORK.items()}
    _quantiles(scenario, "grows", "forward", (0.5, 0.55, 0.6))
    scenario.after(minutes=15)
    for rank in scenario.world.ranks:
        rank.work["forward"] = 1.5
    _quantiles(scenario, "grows", "forward", (0.5, 1.6, 1.7))
    scenario.after(minutes=6)
    _quantiles(scenario, "grows", "forward", (1.5, 1.6, 1.7))
    scenario.after(minutes=5)
    scenario.never()
    return scenario


PLAYS: tuple[Play, ...] = (slow_trends, earlier_runs, becomes_longer)
