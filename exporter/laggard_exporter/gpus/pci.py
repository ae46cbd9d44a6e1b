"""The GPUs that the PCI bus shows, whatever the driver says."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from laggard_exporter import files

SYSFS = Path("/sys")


class Kind(NamedTuple):
    """GPUs of a vendor: its number, and the classes of devices that GPUs have."""

    vendor: str
    classes: tuple[str, ...]


#: VGA and 3D controllers. A GPU's audio and USB functions and NVSwitches are of other classes.
NVIDIA = Kind("0x10de", ("0x0300", "0x0302"))
#: Display controllers that have no display, and processing accelerators: Instinct.
AMD_ACCELERATORS = Kind("0x1002", ("0x0302", "0x0380", "0x1200"))
#: Graphics of processors and boards with a display too.
AMD = Kind("0x1002", (*AMD_ACCELERATORS.classes, "0x0300"))


def count_gpus(kind: Kind, sysfs: Path = SYSFS) -> int | None:
    """Return how many GPUs of this kind there are on the PCI bus, None where sysfs does not show it."""
    try:
        with os.scandir(sysfs / "bus/pci/devices") as devices:
            return sum(_is_gpu(device.path, device.inode(), kind) for device in devices)
    except OSError:
        return None


# A node may have hundreds of devices. What a device is stays; another one in its place has another inode.
@lru_cache(8192)
def _is_gpu(path: str, inode: int, wanted: Kind) -> bool:  # noqa: ARG001 - the inode tells devices apart
    device = Path(path)
    vendor, kind = (files.read_text(device / name) or "" for name in ("vendor", "class"))
    if vendor != wanted.vendor or not kind.startswith(wanted.classes):
        return False
    # A virtual function is a part of a GPU, for a virtual machine.
    return not (device / "physfn").exists()
