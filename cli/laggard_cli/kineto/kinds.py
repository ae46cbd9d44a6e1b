"""What an event of torch's profiler is, by its category and its name."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

#: How torch's profiler names the steps that it is told of.
STEP = "ProfilerStep#"
#: NCCL and RCCL, what does without them, as NVSHMEM, DeepEP, MORI, symmetric memory, vLLM, FlashInfer and Transformer
#: Engine, and what is called as a collective is; but for a kernel that Inductor calls by all that it made it from.
_COLLECTIVE_KERNEL = re.compile(
    r"(?!triton_(?:poi|red|per|tem|for)_).*?(?:nccl|rccl|msccl|oneccl|hccl|nvshmem|deep_?ep|pplx|"
    r"\bep_?(?:dispatch|combine)|(?<!warp)(?<!warp_)(?<!block)(?<!block_)all_?(?:reduce|gather|to_?all)|"
    r"reduce_?scatter|cross_device_reduce|userbuffers)",
    re.IGNORECASE | re.DOTALL,
)
#: CUDA and ROCm's HIP; HIP's own name; Level Zero from memory that is pinned (H) and that is not (M).
_COPY_IN = re.compile(r"HtoD|HostToDevice|\b[HM]2D\b")
#: Categories of 2021 by those that came after them.
_OLD_CATEGORIES = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}


class Kind(IntEnum):
    """What an event is."""

    OPERATOR = 1
    ANNOTATION = 2
    STEP = 3
    DATA = 4
    OPTIMIZER = 5
    ZERO_GRAD = 6
    BACKWARD = 7
    #: A collective under way, as the host sees it; and the call that starts it.
    COLLECTIVE = 8
    CALL = 9
    KERNEL = 10
    COLLECTIVE_KERNEL = 11
    COPY_IN = 12
    COPY = 13
    MEMSET = 14
    LAUNCH = 15
    #: A function of Python, where stacks were recorded.
    FUNCTION = 16
    #: An operator that waits for a collective, as tensor parallelism and the compiler call it.
    WAIT = 17


#: By category: what a name begins with, to what the event is, and what it is else.
_PREFIXES: dict[Any, tuple[tuple[tuple[str | tuple[str, ...], Kind | None], ...], Kind]] = {
    "cpu_op": (
        (
            (
                (
                    "autograd::engine::evaluate_function",
                    "torch.distributed.ddp.reducer::",
                    "torch::distributed::reducer::",
                ),
                Kind.BACKWARD,
            ),
            (("_c10d_functional::wait_tensor", "c10d_functional::wait_tensor"), Kind.WAIT),
            (("c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms"), Kind.CALL),
        ),
        Kind.OPERATOR,
    ),
    "user_annotation": (
        (
            (STEP, Kind.STEP),
            ("enumerate(DataLoader)#", Kind.DATA),
            ("Optimizer.step#", Kind.OPTIMIZER),
            ("Optimizer.zero_grad#", Kind.ZERO_GRAD),
            (("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "hccl:"), Kind.COLLECTIVE),
        ),
        Kind.ANNOTATION,
    ),
    # What is built in is the function's that calls it.
    "python_function": ((("<built-in", None),), Kind.FUNCTION),
}

#: What runs on the device.
DEVICE = (Kind.KERNEL, Kind.COLLECTIVE_KERNEL, Kind.COPY_IN, Kind.COPY, Kind.MEMSET)


def kind_of(category: Any, name: str) -> Kind | None:
    """Return what an event is; ``None`` for one that says nothing of a rank's work."""
    if category == "Operator":
        # It was the category of annotations too.
        marks, _ = _PREFIXES["user_annotation"]
        mark = next((kind for prefix, kind in marks if name.startswith(prefix)), None)
        if mark is not None:
            return mark
    category = _OLD_CATEGORIES.get(category, category) if isinstance(category, str) else category
    if category in _PREFIXES:
        prefixes, otherwise = _PREFIXES[category]
        return next((kind for prefix, kind in prefixes if name.startswith(prefix)), otherwise)
    if category == "kernel":
        return Kind.COLLECTIVE_KERNEL if _COLLECTIVE_KERNEL.match(name) else Kind.KERNEL
    if category == "gpu_memcpy":
        return Kind.COPY_IN if _COPY_IN.search(name) else Kind.COPY
    if category == "gpu_memset":
        return Kind.MEMSET
    return Kind.LAUNCH if str(category).endswith(("_runtime", "_driver")) else None
