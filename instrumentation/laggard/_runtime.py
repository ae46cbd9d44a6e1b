"""What a run runs on: versions, layout and device, so that runs can be compared and a regression be explained.

Read once, when reporting begins. Nothing here starts a device or waits for one; what is not known is left out.
"""

from __future__ import annotations

import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from laggard.shared import environment
from laggard.shared.attributes import Attribute
from laggard.shared.names import clip_name
from laggard.version import __version__

_DRIVER = Path("/proc/driver/nvidia/version")
#: Said by whoever starts the run.
_SAID = {
    Attribute.COMMIT: environment.LAGGARD_COMMIT,
    Attribute.IMAGE: environment.LAGGARD_IMAGE,
    Attribute.PRECISION: environment.LAGGARD_PRECISION,
    Attribute.TEAM: environment.LAGGARD_TEAM,
}


def facts(workload: str, layout: str, driver: Path = _DRIVER) -> dict[str, str]:
    """Return the attributes of ``training.run.info``."""
    torch: Any = sys.modules.get("torch")
    known = {
        Attribute.FRAMEWORK_VERSION: f"torch {_torch_version(torch)}",
        Attribute.RUNTIME_VERSION: platform.python_version(),
        Attribute.LAGGARD_VERSION: __version__,
        Attribute.WORKLOAD: workload,
        Attribute.LAYOUT: layout,
        Attribute.CUDA_VERSION: getattr(getattr(torch, "version", None), "cuda", None) or "",
        Attribute.NCCL_VERSION: _nccl_version(torch),
        Attribute.DRIVER_VERSION: _driver_version(driver),
        **{attribute: environment.text(variable) for attribute, variable in _SAID.items()},
    }
    return {attribute: clip_name(value) for attribute, value in known.items() if value}


def hardware_id() -> str:
    """Return the identity of the GPU that the process uses most, as NVML or ROCm writes it; else nothing."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    with suppress(Exception):  # an allocator without statistics, a torch that does not say
        # The current device is that of a thread, and this is not the one that trains.
        _, index = max((torch.cuda.memory_reserved(index), -index) for index in range(torch.cuda.device_count()))
        uuid = torch.cuda.get_device_properties(-index).uuid
        if not torch.version.cuda:
            return rocm_id(str(uuid))
        return f"{'MIG' if environment.text('CUDA_VISIBLE_DEVICES').startswith('MIG-') else 'GPU'}-{uuid}"
    return ""


def rocm_id(uuid: str) -> str:
    """Return the identity of a GPU as ROCm writes it, ``GPU-`` and 16 digits; empty where it is none.

    HIP fills the 16 bytes of a UUID with the 16 hexadecimal digits of the GPU's unique id, as text.
    """
    digits = bytes.fromhex(uuid.replace("-", "")).decode("ascii", "replace")
    return f"GPU-{digits}" if re.fullmatch("[0-9a-f]{16}", digits) else ""


def _torch_version(torch: Any) -> str:
    # The installed version without importing anything; a training process has it loaded anyway.
    loaded = getattr(torch, "__version__", None)
    if loaded:
        return str(loaded)
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "absent"


def _nccl_version(torch: Any) -> str:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_nccl_available():
        return ""
    with suppress(Exception):  # a build may have less than it says
        return ".".join(map(str, torch.cuda.nccl.version()))
    return ""


def _driver_version(path: Path) -> str:
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", path.read_text())
    except OSError:
        return ""
    return found[1] if found else ""
