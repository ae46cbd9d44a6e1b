"""The table of scenarios, and the names of the alerts that they are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.evaluation.draw import Draw
from lab.evaluation.model.job import Case

STRAGGLER, STALLED, MISSING = "TrainingStraggler", "TrainingStalled", "TrainingRankMissing"
INPUT, COMMUNICATION, TELEMETRY = "TrainingInputBound", "TrainingCommunicationBound", "TrainingTelemetryDown"
DIED, FROZEN, RESTARTS = "TrainingRankDied", "TrainingRankFrozen", "TrainingRestartLoop"
FAILED = "TrainingRunFailed"
NODE, STAGE, IMBALANCE = "TrainingNodeSlow", "TrainingStageSlow", "TrainingDataImbalance"
NETWORK, CONTENTION = "TrainingNetworkBursty", "TrainingContention"
THERMAL, POWER = "TrainingThermalSlowdown", "TrainingPowerSlowdown"
BUSY, STORAGE, COPY = "TrainingInputWorkersBusy", "TrainingInputStorageSlow", "TrainingCopyBound"
SERIAL, COLLECTION = "TrainingHiddenSerialization", "TrainingGarbageCollection"
SAVES, STALE_SAVE = "TrainingCheckpointSlow", "TrainingCheckpointStale"
JITTER, TAIL, REGRESSION = "TrainingJitter", "TrainingLongTail", "TrainingRegression"
RECOMPILES, EPOCHS = "TrainingRecompilationStorm", "TrainingEpochStartSlow"
LEAK, HEADROOM = "TrainingMemoryLeak", "TrainingMemoryHeadroom"
FRAGMENTS, OUT_OF_MEMORY = "TrainingMemoryFragmentation", "TrainingOutOfMemory"
LOSS_NAN, GRADIENT_NAN = "TrainingLossNotFinite", "TrainingGradientNotFinite"
LOSS_SPIKE, GRADIENT_SPIKE = "TrainingLossSpike", "TrainingGradientNormSpike"
GPU_LOST, XID_CRITICAL, XID_CONTAINED = "TrainingGpuLost", "TrainingGpuXidCritical", "TrainingGpuXidContained"
ECC, RECOVERY, REMAP = "TrainingGpuEccErrors", "TrainingGpuRecoveryNeeded", "TrainingGpuRowRemap"
THROTTLED, CLOCK, PCIE, NVLINK = (
    "TrainingGpuThrottled", "TrainingGpuClockLow", "TrainingGpuPcieDegraded", "TrainingGpuNvlinkDegraded",
)  # fmt: skip
CAPPED, UNDERUSED, TENSOR = "TrainingGpuPowerCapped", "TrainingGpuUnderused", "TrainingGpuTensorIdle"
GOODPUT = "TrainingGoodputLow"
DROPPED, SKEW = "TrainingTelemetryDropped", "TrainingClockSkew"
CLASH, EXCESS, SPARSE = "TrainingRankClash", "TrainingSeriesExcess", "TrainingScrapesSparse"
DRIVERS, IDLE, HELD = "TrainingDriverMismatch", "TrainingGpuIdle", "TrainingGpuHeld"

#: Alerts that are judged: those of the core first. What else fires is listed, by scenario.
CORE = (STRAGGLER, STALLED, MISSING, INPUT, COMMUNICATION, TELEMETRY)
ALL = (
    *CORE, DIED, FAILED, FROZEN, RESTARTS, NODE, STAGE, IMBALANCE, NETWORK, CONTENTION, THERMAL, POWER, BUSY, STORAGE,
    COPY, SERIAL, COLLECTION, SAVES, STALE_SAVE, JITTER, TAIL, REGRESSION, RECOMPILES, EPOCHS, LEAK, HEADROOM,
    FRAGMENTS, OUT_OF_MEMORY, LOSS_NAN, GRADIENT_NAN, LOSS_SPIKE, GRADIENT_SPIKE, GPU_LOST, XID_CRITICAL,
    XID_CONTAINED, ECC, RECOVERY, REMAP, THROTTLED, CLOCK, PCIE, NVLINK, CAPPED, UNDERUSED, TENSOR, GOODPUT, DROPPED,
    SKEW, CLASH, EXCESS, SPARSE, DRIVERS, IDLE, HELD,
)  # fmt: skip

Make = Callable[[Draw], Case]


@dataclass(frozen=True)
class Scenario:
    """How to make a case, and of what sizes: all of them, or so many cases a seed whose sizes are drawn."""

    make: Make
    cases: int | None = None
    #: Fewer ranks than these cannot show it.
    least: int = 2


SCENARIOS: dict[str, Scenario] = {}


def scenario(make: Make) -> Make:
    """Put a scenario into the table, under its function's name, to be played with all sizes."""
    SCENARIOS[make.__name__] = Scenario(make)
    return make


def drawn(cases: int, least: int = 2) -> Callable[[Make], Make]:
    """Put a scenario into the table that is played so many times for each seed, with sizes that are drawn."""

    def add(make: Make) -> Make:
        SCENARIOS[make.__name__] = Scenario(make, cases, least)
        return make

    return add
