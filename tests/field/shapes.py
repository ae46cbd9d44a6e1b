"""Every shape of loop, and what is to be reported of it. Data, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A script with its arguments, and what each of its ranks reports."""

    name: str
    script: str
    steps: int
    arguments: tuple[str, ...] = ()
    missing: str = ""
    """The signal that is not available after the run."""
    either: str = ""
    """A signal that may be available or not, as long as what it says is true."""
    ranks: int = 1
    own_processes: int = 0
    """Processes that train, where the script starts them itself."""
    in_turn: bool = False
    """Whether they train one after the other: each is the run as it goes on."""
    waits: frozenset[str] = frozenset()
    """Phases in which the script waits for peers, and cannot tell for how long."""
    loads: bool = False
    """Whether the state of an optimizer is loaded before the first step, which is why it is left out."""
    unseen_steps: bool = False
    """Whether it is right to see no step, if the signal of the optimizer says so."""
    skipped: int = 0
    needs: tuple[str, ...] = ()
    """Packages without which the script cannot run."""


def _shape(name: str, steps: int, *arguments: str, **options: Any) -> Shape:
    script, _, _ = name.partition(", ")
    return Shape(name, script.replace(" ", "_"), steps, arguments, **options)


SHAPES: tuple[Shape, ...] = (
    _shape("plain", 12),
    _shape("hf trainer", 20),
    _shape("accelerate loop", 18),
    _shape("lightning loop", 18),
    _shape("nanogpt", 12, ranks=2, waits=frozenset({"backward"}), missing="data"),
    _shape("timm task", 18),
    _shape("ddp module", 18, ranks=2, waits=frozenset({"backward"})),
    _shape("gan", 12),
    _shape("semi supervised, labels between the fetches", 16, "between"),
    _shape("semi supervised, labels after the fetches", 16, "after"),
    _shape("teacher, with a loader", 12, "loader"),
    _shape("teacher, without a loader", 12, "hand", missing="data"),
    _shape("ppo, minibatches by hand", 20, "hand", missing="data"),
    _shape("ppo, a loader for each rollout", 20, "loader"),
    _shape("grpo", 12),
    _shape("fresh iterator", 12),
    _shape("epochs, short", 18, "short"),
    _shape("epochs, endless", 18, "cycle"),
    _shape("loader in data set", 12),
    _shape("transforms", 16),
    _shape("loader on a thread", 16, either="data"),
    _shape("threads in turns, of a pool", 24, "pool"),
    _shape("threads in turns, with a lock", 24, "lock", missing="data"),
    _shape("stateful loader, no workers", 16, "0", needs=("torchdata",)),
    _shape("stateful loader, two workers", 16, "2", needs=("torchdata",)),
    _shape("rebatched", 24),
    _shape("hf iterable, through a loader", 12, "loader", needs=("datasets",)),
    _shape("hf iterable, without a loader", 12, "batched", needs=("datasets",), missing="data"),
    _shape(
        "dispatched",
        12,
        ranks=2,
        # Its own loader is around torch's, and what it does there besides fetching is seen as other.
        waits=frozenset({"data", "backward", "other"}),
        loads=True,
        needs=("accelerate",),
        either="data",
    ),
    _shape("activation checkpointing, reentrant", 12, "reentrant"),
    _shape("activation checkpointing, not reentrant", 12, "not_reentrant"),
    _shape("engine backward", 10),
    _shape("own optimizer, by hand", 16, "hand", missing="optimizer", unseen_steps=True),
    _shape("own optimizer, a class", 16, "class", missing="optimizer", unseen_steps=True),
    _shape("closures", 8, missing="data"),
    _shape("checkpoints, to a file", 14, "file"),
    _shape("checkpoints, through memory", 14, "memory"),
    _shape("checkpoints, safetensors", 14, "safetensors"),
    _shape("checkpoints, distributed", 14, "dcp"),
    _shape("checkpoints, torch_checkpointing", 14, "manager", needs=("torch_checkpointing",)),
    _shape("processes, hogwild", 12, "hogwild", own_processes=2),
    _shape("processes, folds", 12, "folds", own_processes=2, in_turn=True),
    _shape("processes, sweep", 12, "sweep", own_processes=2),
    _shape("evaluations, of the training data", 24, "own_data"),
    _shape("evaluations, broken off", 24, "broken_off"),
    _shape("evaluations, broken off and read ahead", 24, "read_ahead"),
    _shape("evaluations, between the batches of an update", 12, "in_between"),
    _shape("evaluations, with an iterator that is kept", 24, "kept"),
    _shape("evaluations, of the training data, with gradients", 24, "own_data", "gradients"),
    _shape("evaluations, broken off, with gradients", 24, "broken_off", "gradients"),
    _shape("evaluations, between the batches of an update, with gradients", 12, "in_between", "gradients"),
    _shape("evaluations, read ahead, of forces", 24, "read_ahead", "forces"),
    _shape("whole passes", 8),
    _shape("skipped batches", 12),
    _shape("closure loader", 16),
    _shape("optimizer in backward", 16),
    _shape("rlhf, a loader for each rollout", 16, "loaders"),
    _shape("rlhf, batches cut by hand", 8, "split"),
    _shape("own iterator, no workers", 18, "0"),
    _shape("own iterator, two workers", 18, "2"),
    _shape("fetch in step, with a loader", 12, "loader"),
    _shape("fetch in step, without a loader", 12, "hand", missing="data"),
    _shape("iteration based", 18),
    _shape("cached contrastive", 14),
    _shape("several backbones", 16),
    _shape("scaler", 12, skipped=3),
)
