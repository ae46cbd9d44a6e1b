"""Names of operations: torch has one set for what is issued and another for what is waited for."""

from __future__ import annotations

Kind = tuple[str, int]
"""An operation's name in metrics and its number in the state file."""

#: By torch's name of the operation; variants of one operation share a name. The numbers are torch's own.
KINDS: dict[str, Kind] = {
    "BROADCAST": ("broadcast", 2),
    "ALLREDUCE": ("all_reduce", 3),
    "ALLREDUCE_COALESCED": ("all_reduce", 13),
    "REDUCE": ("reduce", 4),
    "ALLGATHER": ("all_gather", 5),
    "ALLGATHER_BASE": ("all_gather", 14),
    "ALLGATHER_COALESCED": ("all_gather", 15),
    "ALLGATHER_INTO_TENSOR_COALESCED": ("all_gather", 16),
    "REDUCE_SCATTER": ("reduce_scatter", 6),
    "REDUCE_SCATTER_BASE": ("reduce_scatter", 17),
    "REDUCE_SCATTER_TENSOR_COALESCED": ("reduce_scatter", 18),
    "ALLTOALL": ("all_to_all", 7),
    "ALLTOALL_BASE": ("all_to_all", 19),
    "BARRIER": ("barrier", 8),
    "SCATTER": ("scatter", 9),
    "GATHER": ("gather", 10),
}

#: Methods of a process group, for versions without pre-hooks: torch's name of the operation, and which argument holds
#: the input.
METHODS = {
    "allreduce": ("ALLREDUCE", 0),
    "allreduce_coalesced": ("ALLREDUCE_COALESCED", 0),
    "broadcast": ("BROADCAST", 0),
    "reduce": ("REDUCE", 0),
    "allgather": ("ALLGATHER", 1),
    "_allgather_base": ("ALLGATHER_BASE", 1),
    "all_gather_single": ("ALLGATHER_BASE", 1),
    "allgather_coalesced": ("ALLGATHER_COALESCED", 1),
    "allgather_into_tensor_coalesced": ("ALLGATHER_INTO_TENSOR_COALESCED", 1),
    "all_gather_single_coalesced": ("ALLGATHER_INTO_TENSOR_COALESCED", 1),
    "reduce_scatter": ("REDUCE_SCATTER", 1),
    "_reduce_scatter_base": ("REDUCE_SCATTER_BASE", 1),
    "reduce_scatter_single": ("REDUCE_SCATTER_BASE", 1),
    "reduce_scatter_tensor_coalesced": ("REDUCE_SCATTER_TENSOR_COALESCED", 1),
    "reduce_scatter_single_coalesced": ("REDUCE_SCATTER_TENSOR_COALESCED", 1),
    "alltoall": ("ALLTOALL", 1),
    "alltoall_base": ("ALLTOALL_BASE", 1),
    "all_to_all_single": ("ALLTOALL_BASE", 1),
    "gather": ("GATHER", 1),
    "gather_single": ("GATHER", 1),
    "scatter": ("SCATTER", 1),
    "barrier": ("BARRIER", -1),
}

#: What a ``Work`` says of itself, c10d's ``OpType``.
WORK_OPERATIONS = {
    0: "broadcast",
    1: "all_reduce",
    2: "all_reduce",
    3: "reduce",
    4: "all_gather",
    5: "all_gather",
    6: "all_gather",
    7: "gather",
    8: "scatter",
    9: "reduce_scatter",
    10: "all_to_all",
    11: "all_to_all",
    12: "point_to_point",
    13: "point_to_point",
    14: "point_to_point",
    15: "barrier",
    16: "reduce_scatter",
}
