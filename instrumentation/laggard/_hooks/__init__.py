"""The hooks: one module per patched thing, each with what it patches, when, and how it is undone."""

from laggard._hooks.backward import BackwardHook
from laggard._hooks.base import Hook
from laggard._hooks.checkpoint import CheckpointHook
from laggard._hooks.collectives import CollectivesHook
from laggard._hooks.dataloader import DataLoaderHook
from laggard._hooks.ddp import DistributedDataParallelHook
from laggard._hooks.device import DeviceHook
from laggard._hooks.ending import EndingHook
from laggard._hooks.forward import ForwardHook
from laggard._hooks.garbage import GarbageHook
from laggard._hooks.memory import DeviceMemoryHook, MemoryHook
from laggard._hooks.optimizer import OptimizerHook
from laggard._hooks.peers import PeersHook
from laggard._hooks.randomness import RandomnessHook
from laggard._hooks.scaler import GradScalerHook
from laggard._hooks.streams import StreamsHook
from laggard._hooks.torch_compile import TorchCompileHook
from laggard._hooks.torch_compile_skip import TorchCompileSkipHook
from laggard._hooks.torch_compile_state import Traced
from laggard._hooks.transfer import TransferHook
from laggard._hooks.worker_fetch import WorkerFetchHook
from laggard._hooks.worker_silence import WorkerSilenceHook
from laggard._hooks.workers import WorkersHook

#: In the order in which they are installed; each is a kind of hook that takes its host.
HOOKS: tuple[type[Hook], ...] = (
    RandomnessHook,
    TorchCompileSkipHook,
    WorkerSilenceHook,
    DataLoaderHook,
    ForwardHook,
    BackwardHook,
    OptimizerHook,
    GradScalerHook,
    TorchCompileHook,
    DistributedDataParallelHook,
    CollectivesHook,
    StreamsHook,
    PeersHook,
    EndingHook,
    DeviceHook,
    CheckpointHook,
    TransferHook,
    WorkerFetchHook,
    WorkersHook,
    MemoryHook,
    DeviceMemoryHook,
    GarbageHook,
)

__all__ = ["HOOKS", "DeviceHook", "Hook", "Traced"]
