"""The GPUs that the PCI bus shows, whatever the driver says."""

from __future__ import annotations

from pathlib import Path

from laggard_exporter import files

SYSFS = Path("/sys")

_NVIDIA = "0x10de"
# Display controllers: VGA and 3D. A GPU's audio and USB functions and NVSwitches are of other classes.
_CLASSES = ("0x0300", "0x0302")


def count_gpus(sysfs: Path = SYSFS) -> int | None:
    """Return how many GPUs of NVIDIA there are on the PCI bus, None where sysfs does not show it."""
    try:
        devices = list((sysfs / "bus/pci/devices").iterdir())
    except OSError:
        return None
    return sum(map(_is_gpu, devices))


def _is_gpu(device: Path) -> bool:
    vendor, kind = (files.read_text(device / name) or "" for name in ("vendor", "class"))
    if vendor != _NVIDIA or not kind.startswith(_CLASSES):
        return False
    # A virtual function is a part of a GPU, for a virtual machine.
    return not (device / "physfn").exists()
