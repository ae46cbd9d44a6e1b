"""Every metric that laggard emits from a training process or about one, with its attributes: the contract.

The tables here are data. The instruments, the node exporter's rank collector, ``docs/metrics.md`` and the tests that
hold the rules against what is emitted all walk them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laggard.shared.phases import STILL_SECONDS, STOOD_STILL_SECONDS

METER_NAME = "laggard"


class Attribute:
    """Attribute names of data points; :func:`laggard.shared.names.prometheus_label` gives the label."""

    RUN = "training.run"
    RANK = "training.rank"
    PEER_GROUP = "training.peer_group"
    WORKLOAD = "training.workload"
    LOCAL_RANK = "training.local_rank"
    RESTARTS = "training.restarts"
    PHASE = "training.phase"
    QUANTILE = "training.quantile"
    REASON = "training.reason"
    STATE = "training.state"
    SIGNAL = "training.signal"
    VALUE = "training.value"
    COLLECTIVE_OPERATION = "training.collective.operation"
    COLLECTIVE_CALL = "training.collective.call"
    PROCESS_GROUP = "training.process_group"
    CHECKPOINT_OPERATION = "training.checkpoint.operation"
    MEMORY_KIND = "training.memory.kind"
    GC_GENERATION = "training.gc.generation"
    STEP = "training.step"
    STEP_SLOW = "training.step.slow"
    STEP_GC = "training.step.gc"
    ENDED_BY = "training.ended_by"
    ENDED_WITH = "training.ended_with"
    HOST_NAME = "host.name"
    PROCESS_PID = "process.pid"
    HARDWARE_ID = "hw.id"
    METRICS_PORT = "training.metrics_port"
    FRAMEWORK_VERSION = "training.framework.version"
    RUNTIME_VERSION = "process.runtime.version"
    LAGGARD_VERSION = "laggard.version"
    CUDA_VERSION = "training.cuda.version"
    NCCL_VERSION = "training.nccl.version"
    DRIVER_VERSION = "training.driver.version"
    COMMIT = "training.commit"
    IMAGE = "training.image"
    PRECISION = "training.precision"
    LAYOUT = "training.layout"
    TEAM = "training.team"


#: On every data point of a training process. The peer group is there only where one is known.
IDENTITY = (Attribute.RUN, Attribute.RANK, Attribute.PEER_GROUP)

#: On ``training.rank.start.timestamp``, whose value makes joins to a host or a device safe.
RANK_FACTS = (
    Attribute.HOST_NAME,
    Attribute.PROCESS_PID,
    Attribute.LOCAL_RANK,
    Attribute.WORKLOAD,
    Attribute.HARDWARE_ID,
)

#: On ``training.run.info``, each where it is known.
RUN_FACTS = (
    Attribute.FRAMEWORK_VERSION,
    Attribute.RUNTIME_VERSION,
    Attribute.LAGGARD_VERSION,
    Attribute.CUDA_VERSION,
    Attribute.NCCL_VERSION,
    Attribute.DRIVER_VERSION,
    Attribute.COMMIT,
    Attribute.IMAGE,
    Attribute.PRECISION,
    Attribute.LAYOUT,
    Attribute.TEAM,
    Attribute.WORKLOAD,
)

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

PROCESS_UP = Metric(
    "training.process.up", "gauge", "", "1 while the rank's process lives: it still holds the lock on its state file."
)
PROCESS_STATE = Metric(
    "training.process.state",
    "gauge",
    "",
    "1 for the state that the rank's state file says; a process that was killed keeps its last one.",
    (Attribute.STATE,),
)
_STILL = f"Only of a rank that stands still, or has within the last {STOOD_STILL_SECONDS:.0f} s."
PROCESS_CONDITION = Metric(
    "training.process.condition",
    "gauge",
    "",
    "Why the rank stands still: its process died without a clean end (0), it ended cleanly (1), the kernel holds it "
    f"stopped (2), or it shows no sign of progress for longer than a usual step, and {STILL_SECONDS:.0f} s (3); 4 "
    f"where it goes on again. {_STILL}",
)
PROCESS_STANDSTILL = Metric(
    "training.process.standstill",
    "gauge",
    "s",
    f"Time since the rank last entered or left a phase. {_STILL}",
)
PROCESS_STOPPED = Metric(
    "training.process.stopped",
    "gauge",
    "",
    "1 while the kernel holds the process stopped (SIGSTOP, a debugger); absent where the process cannot be seen. "
    f"{_STILL}",
)
PROCESS_STEPS = Metric("training.process.steps", "counter", "{step}", "Training steps of this process.")
PROCESS_PROGRESS = Metric(
    "training.process.progress", "counter", "", "Signs of progress of any kind: a batch, a forward, a collective."
)
PROCESS_PHASE = Metric(
    "training.process.phase", "gauge", "", f"1 for the phase that the rank is in. {_STILL}", (Attribute.PHASE,)
)
PROCESS_PHASE_AGE = Metric(
    "training.process.phase.age", "gauge", "s", "Time since the rank last entered or left a phase."
)
PROCESS_LAST_STEP_AGE = Metric(
    "training.process.last_step.age", "gauge", "s", "Time since the rank's newest step ended; absent before the first."
)
PROCESS_COLLECTIVE_SEQUENCE = Metric(
    "training.process.collective.sequence",
    "gauge",
    "",
    f"Collectives that the rank started on a process group, point to point excluded. {_STILL}",
    (Attribute.PROCESS_GROUP,),
)
PROCESS_COLLECTIVE_OPERATION = Metric(
    "training.process.collective.operation",
    "gauge",
    "",
    "Which collective the rank started last on a process group, as torch numbers them (c10d OpType); absent before the "
    f"first. Of ranks at the same sequence, one that differs calls another collective than the others. {_STILL}",
    (Attribute.PROCESS_GROUP,),
)
PROCESS_IN_COLLECTIVE = Metric(
    "training.process.in_collective",
    "gauge",
    "",
    f"1 while the rank has started a collective on the process group that it has not seen finish. {_STILL}",
    (Attribute.PROCESS_GROUP,),
)
PROCESS_WORLD_SIZE = Metric("training.process.world_size", "gauge", "{rank}", "World size that the rank was told.")
PROCESS_START_TIMESTAMP = Metric(
    "training.process.start.timestamp", "gauge", "s", "Unix time at which the rank's process started."
)
PROCESS_INFO = Metric(
    "training.process.info",
    "gauge",
    "",
    "Facts of the rank's process.",
    (
        # A device is named by `uuid` in all that is exposed for Prometheus directly.
        *(fact if fact != Attribute.HARDWARE_ID else "uuid" for fact in RANK_FACTS),
        Attribute.PEER_GROUP,
        Attribute.RESTARTS,
        Attribute.METRICS_PORT,
    ),
)

#: What the node exporter says of each rank on its node, from the rank's state file.
#: Identity of these: run and rank; the peer group is a label of the info metric only.
PROCESS_FAILURE_TIMESTAMP = Metric(
    "training.process.failure.timestamp",
    "gauge",
    "s",
    "Unix time at which the rank's newest process without a clean end ended, with where it stood and how it ended: by "
    "an exception (with its class), an exit code, a signal, on request (SIGTERM, SIGINT, SIGHUP), or without a word "
    "(unknown: SIGKILL, a fault in native code, os._exit). Unseen is unknown, with the time of its last sign of life.",
    (Attribute.HOST_NAME, Attribute.PHASE, Attribute.ENDED_BY, Attribute.ENDED_WITH),
)

PROCESS_METRICS = (
    PROCESS_UP,
    PROCESS_STATE,
    PROCESS_CONDITION,
    PROCESS_STANDSTILL,
    PROCESS_STOPPED,
    PROCESS_STEPS,
    PROCESS_PROGRESS,
    PROCESS_PHASE,
    PROCESS_PHASE_AGE,
    PROCESS_LAST_STEP_AGE,
    PROCESS_COLLECTIVE_SEQUENCE,
    PROCESS_COLLECTIVE_OPERATION,
    PROCESS_IN_COLLECTIVE,
    PROCESS_WORLD_SIZE,
    PROCESS_START_TIMESTAMP,
    PROCESS_INFO,
    PROCESS_FAILURE_TIMESTAMP,
)
