"""Every metric that the node exporter emits about the process of a rank, from the rank's state file.

Their identity is run and rank; the peer group is a label of the info metric only.
"""

from __future__ import annotations

from laggard.shared.attributes import RANK_FACTS, Attribute
from laggard.shared.metrics import Metric
from laggard.shared.phases import STILL_SECONDS, STOOD_STILL_SECONDS

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
    "1 while the kernel holds the process stopped (SIGSTOP, a debugger, a frozen control group); absent "
    f"where the process cannot be seen. {_STILL}",
)
PROCESS_STEPS = Metric("training.process.steps", "counter", "{step}", "Training steps of this process.")
PROCESS_PROGRESS = Metric(
    "training.process.progress", "counter", "", "Signs of progress of any kind: a batch, a forward, a collective."
)
PROCESS_PHASE = Metric(
    "training.process.phase",
    "gauge",
    "",
    f"1 for the phase that the rank is in. {_STILL}",
    (Attribute.HOST_NAME, Attribute.PHASE),
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

PROCESS_FAILURE_TIMESTAMP = Metric(
    "training.process.failure.timestamp",
    "gauge",
    "s",
    "Unix time at which the rank's newest process without a clean end ended, with where it stood and how it ended: by "
    "an exception (with its class), an exit code, a signal, on request (SIGTERM, SIGINT, SIGHUP), or without a word "
    "(unknown: SIGKILL, a fault in native code, os._exit), with what the kernel says: a signal, an exit code, out of "
    "memory. Unseen is unknown, with the time of its last sign of life.",
    (Attribute.HOST_NAME, Attribute.PHASE, Attribute.ENDED_BY, Attribute.ENDED_WITH),
)

PROCESS_FAILURE_LAST_STEP_AGE = Metric(
    "training.process.failure.last_step.age",
    "gauge",
    "s",
    "Time since the last step of that process had ended when it ended. None where there was none, or its end unseen.",
)

#: What the node exporter says of each rank on its node, from the rank's state file.
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
    PROCESS_FAILURE_LAST_STEP_AGE,
)
