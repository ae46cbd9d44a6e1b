"""Names of the attributes that metrics of training carry, and which of them stand together."""

from __future__ import annotations


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
