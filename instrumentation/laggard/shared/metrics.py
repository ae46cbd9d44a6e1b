"""Every metric that laggard emits from a training process, with its attributes: the contract.

The tables here and in :mod:`laggard.shared.process_metrics` are data. The instruments, the node exporter's rank
collector, ``docs/metrics.md`` and the tests that hold the rules against what is emitted all walk them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laggard.shared.attributes import RANK_FACTS, RUN_FACTS, Attribute

METER_NAME = "laggard"

#: Signals whose presence ``training.signal.available`` tells; rules abstain where one is 0.
SIGNALS: tuple[str, ...] = ("data", "forward", "backward", "optimizer", "communication")

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
#: Steps that a quantile is of at least: of fewer it would be the longest step of all, and one pause a tail.
QUANTILE_STEPS = {"p50": 2, "p95": 20, "p99": 100}

#: Why a step stays out of the histograms of step, own time and phases.
#: ``incomplete``: events were lost, or the process ended before the step did. ``sampling``: steps are so short that
#: only some of them are recorded; the others are like these.
SAMPLING = "sampling"
EXCLUSION_REASONS = ("warmup", "compile", "first_batch", "resume", "incomplete", SAMPLING)

#: Why something that was measured is not in the export.
DROP_REASONS = ("buffer_full", "device_edge", "no_run", "hook_failed", "report_failed")

#: 16 bounds on one logarithmic grid, three a decade from 1 ms to 100 s, for step and own time.
STEP_BOUNDS = tuple(float(f"{10 ** (i / 3 - 3):.3g}") for i in range(16))

#: The newest steps over which the quantile gauges and the communication floor are taken.
RECENT_STEPS = 256


@dataclass(frozen=True)
class Metric:
    """One metric. ``attributes`` are those beside the identity.

    ``bounds`` are a histogram's buckets. Without any it is a sum and a count, unless ``LAGGARD_HISTOGRAMS=full``: each
    bucket counts against the 200 series that a rank may have, and tails are in the quantile gauges.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


STEP_DURATION = Metric(
    "training.step.duration",
    "histogram",
    "s",
    "Duration of a training step: from one batch fetch after an optimizer update to the next.",
    bounds=STEP_BOUNDS,
)
STEP_OWN_DURATION = Metric(
    "training.step.own.duration",
    "histogram",
    "s",
    "The rank's own part of a step: the step without communication, checkpoint and evaluation.",
    bounds=STEP_BOUNDS,
)
PHASE_DURATION = Metric(
    "training.phase.duration",
    "histogram",
    "s",
    "Time of a step spent in a phase; one observation per step and phase, and the phases add up to the step.",
    (Attribute.PHASE,),
)
PHASE_QUANTILE = Metric(
    "training.phase.duration.quantile",
    "gauge",
    "s",
    f"Quantile of a phase's duration over the last {RECENT_STEPS} steps. Absent until there are enough steps to tell "
    "it from the longest (p95: 20, p99: 100), and for checkpoint and evaluation.",
    (Attribute.PHASE, Attribute.QUANTILE),
)
COMMUNICATION_FLOOR = Metric(
    "training.communication.floor",
    "gauge",
    "s",
    f"Smallest exposed communication wait of one step in the last {RECENT_STEPS}: "
    "the transfer cost that no balance between ranks can remove.",
)
STEPS = Metric("training.steps", "counter", "{step}", "Training steps, all of them.")
STEPS_SKIPPED = Metric(
    "training.steps.skipped", "counter", "{step}", "Steps whose optimizer update was skipped by a gradient scaler."
)
STEPS_EXCLUDED = Metric(
    "training.steps.excluded",
    "counter",
    "{step}",
    "Steps kept out of the duration histograms.",
    (Attribute.REASON,),
)
STEPS_EXCLUDED_DURATION = Metric(
    "training.steps.excluded.duration",
    "counter",
    "s",
    "Time of the steps kept out of the duration histograms.",
    (Attribute.REASON,),
)
COMPILE_RECOMPILATIONS = Metric(
    "training.compile.recompilations",
    "counter",
    "{recompilation}",
    "Compilations of code that had been compiled before; absent in a process that never loads the compiler.",
)
LAST_STEP_TIMESTAMP = Metric("training.last_step.timestamp", "gauge", "s", "Unix time at which the newest step ended.")
COLLECTIVE_DURATION = Metric(
    "training.collective.duration",
    "histogram",
    "s",
    "Time that the training thread was blocked by one collective, send or receive that Python waits for.",
    (Attribute.COLLECTIVE_OPERATION,),
)
COLLECTIVE_IO = Metric(
    "training.collective.io",
    "counter",
    "By",
    "Bytes of input that this rank handed to collectives.",
    (Attribute.COLLECTIVE_OPERATION,),
)
CHECKPOINT_DURATION = Metric(
    "training.checkpoint.duration",
    "histogram",
    "s",
    "Time that the training thread was held by saving or loading a checkpoint; what goes on in the background is not "
    "in it.",
    (Attribute.CHECKPOINT_OPERATION,),
)
CHECKPOINT_LAST_SAVE = Metric(
    "training.checkpoint.last_save.timestamp",
    "gauge",
    "s",
    "Unix time at which this rank last completed a save, in the background or not; absent on ranks that save nothing.",
)
DATALOADER_QUEUE_LENGTH = Metric(
    "training.dataloader.queue.length",
    "gauge",
    "{batch}",
    "Batches that the rank's data workers have finished and that wait to be fetched.",
)
DATALOADER_WORKERS = Metric(
    "training.dataloader.workers",
    "gauge",
    "{worker}",
    "Data worker processes of the rank; 0 where the training thread loads for itself.",
)
DATALOADER_FETCH_DURATION = Metric(
    "training.dataloader.fetch.duration",
    "histogram",
    "s",
    "Time that a worker needed for one batch, collation included, without the hand-over to the rank.",
)
DATALOADER_FIRST_BATCH_DURATION = Metric(
    "training.dataloader.first_batch.duration",
    "histogram",
    "s",
    "Time that a step waited for the first batch of an iterator, where workers start and a data set is opened.",
)
DATALOADER_WORKER_CPU = Metric(
    "training.dataloader.worker.cpu.time", "counter", "s", "Processor time of all data workers of the rank."
)
DATALOADER_WORKER_IO_WAIT = Metric(
    "training.dataloader.worker.io_wait.time",
    "counter",
    "s",
    "Time that data workers of the rank waited for block devices; absent where the kernel does not count it.",
)
MEMORY_USAGE = Metric(
    "training.memory.usage",
    "gauge",
    "By",
    "Memory of the rank: allocated to tensors, reserved by the allocator and peak of allocated on its device; resident "
    "set of its process without children, and of its data workers, where pages shared with the rank count again.",
    (Attribute.MEMORY_KIND,),
)
MEMORY_LIMIT = Metric(
    "training.memory.limit",
    "gauge",
    "By",
    "What the rank may use: the device's memory, and the least memory limit of its control groups; absent without one.",
    (Attribute.MEMORY_KIND,),
)
MEMORY_ALLOCATION_RETRIES = Metric(
    "training.memory.allocation.retries",
    "counter",
    "{retry}",
    "Allocations on the device that succeeded only after the allocator had given back its cache.",
)
MEMORY_OUT_OF_MEMORY = Metric(
    "training.memory.out_of_memory", "counter", "{error}", "Out-of-memory errors of the device's allocator."
)
GC_DURATION = Metric(
    "training.gc.duration",
    "counter",
    "s",
    "Time that the process stood still for Python's garbage collection.",
    (Attribute.GC_GENERATION,),
)
GC_COLLECTIONS = Metric(
    "training.gc.collections",
    "counter",
    "{collection}",
    "Runs of Python's garbage collection.",
    (Attribute.GC_GENERATION,),
)
RANKS_EXPECTED = Metric("training.ranks.expected", "gauge", "{rank}", "World size of the run.")
RESTARTS = Metric("training.restarts", "gauge", "{restart}", "Elastic restarts of the run before this process.")
RANK_STATE = Metric("training.rank.state", "gauge", "", "1 for the state that the rank is in.", (Attribute.STATE,))
RANK_START_TIMESTAMP = Metric(
    "training.rank.start.timestamp",
    "gauge",
    "s",
    "Unix time at which the rank's process started, with what it runs on; the value makes joins safe.",
    RANK_FACTS,
)
RUN_INFO = Metric(
    "training.run.info",
    "gauge",
    "",
    "What the run runs on; what is not known is left out.",
    RUN_FACTS,
)
SIGNAL_AVAILABLE = Metric(
    "training.signal.available",
    "gauge",
    "",
    "1 when the process can measure the signal, 0 when it cannot; rules abstain on 0.",
    (Attribute.SIGNAL,),
)
SELF_TIME = Metric(
    "training.telemetry.self_time",
    "counter",
    "s",
    "Time that laggard's hooks took on training threads; one call in 13 is timed.",
)
DROPPED = Metric(
    "training.telemetry.dropped",
    "counter",
    "{event}",
    "Measured events that are not in the export.",
    (Attribute.REASON,),
)

LOSS = Metric("training.loss", "gauge", "", "Newest loss given to laggard.log.")
GRADIENT_NORM = Metric("training.gradient.norm", "gauge", "", "Newest norm of the gradients given to laggard.log.")
LEARNING_RATE = Metric("training.learning_rate", "gauge", "", "Newest learning rate given to laggard.log.")
SAMPLES = Metric("training.samples", "counter", "{sample}", "Samples trained on by this rank, as given to laggard.log.")
TOKENS = Metric("training.tokens", "counter", "{token}", "Tokens trained on by this rank, as given to laggard.log.")
FLOPS = Metric("training.flops", "counter", "{operation}", "Floating-point operations given to laggard.log.")
NONFINITE = Metric(
    "training.nonfinite",
    "counter",
    "{value}",
    "Losses and gradient norms given to laggard.log that were infinite or not a number.",
    (Attribute.VALUE,),
)
TELEMETRY_LEVEL = Metric(
    "training.telemetry.level",
    "gauge",
    "",
    "What was given up to keep the budget of telemetry: 0 nothing, 1 traces of steps, 2 also durations of single "
    "collectives and fetches.",
)

#: What a training process emits through OpenTelemetry.
TRAINING_METRICS = (
    STEP_DURATION,
    STEP_OWN_DURATION,
    PHASE_DURATION,
    PHASE_QUANTILE,
    COMMUNICATION_FLOOR,
    STEPS,
    STEPS_SKIPPED,
    STEPS_EXCLUDED,
    STEPS_EXCLUDED_DURATION,
    COMPILE_RECOMPILATIONS,
    LAST_STEP_TIMESTAMP,
    COLLECTIVE_DURATION,
    COLLECTIVE_IO,
    CHECKPOINT_DURATION,
    CHECKPOINT_LAST_SAVE,
    DATALOADER_QUEUE_LENGTH,
    DATALOADER_WORKERS,
    DATALOADER_FETCH_DURATION,
    DATALOADER_FIRST_BATCH_DURATION,
    DATALOADER_WORKER_CPU,
    DATALOADER_WORKER_IO_WAIT,
    MEMORY_USAGE,
    MEMORY_LIMIT,
    MEMORY_ALLOCATION_RETRIES,
    MEMORY_OUT_OF_MEMORY,
    GC_DURATION,
    GC_COLLECTIONS,
    RANKS_EXPECTED,
    RESTARTS,
    RANK_STATE,
    RANK_START_TIMESTAMP,
    RUN_INFO,
    SIGNAL_AVAILABLE,
    SELF_TIME,
    DROPPED,
    LOSS,
    GRADIENT_NORM,
    LEARNING_RATE,
    SAMPLES,
    TOKENS,
    FLOPS,
    NONFINITE,
    TELEMETRY_LEVEL,
)

#: What is left with ``LAGGARD_SERIES=compact``, without the buckets of histograms: at most 60 series a rank, and all
#: that the verdicts on stragglers, stalls, missing ranks, input and communication read.
COMPACT = (
    STEP_DURATION,
    STEP_OWN_DURATION,
    PHASE_DURATION,
    COMMUNICATION_FLOOR,
    STEPS,
    LAST_STEP_TIMESTAMP,
    DATALOADER_FETCH_DURATION,
    RANKS_EXPECTED,
    RESTARTS,
    RANK_STATE,
    RANK_START_TIMESTAMP,
    RUN_INFO,
    SIGNAL_AVAILABLE,
    SELF_TIME,
    LOSS,
    SAMPLES,
    TOKENS,
    TELEMETRY_LEVEL,
)
