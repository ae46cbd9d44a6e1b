"""Compiles the fake AMD SMI and writes its scenarios."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.fake_nvml import fake

_HERE = Path(__file__).parent
#: ROCm 6.2 and 6.3 have version 24, ROCm 6.4 has 25, ROCm 7 has 26.
NEWEST = 26


def build(directory: Path, abi: int = NEWEST, *, without: Iterable[str] = ()) -> Path:
    """Compile a version of the library into ``directory`` and return its path, without some symbols."""
    library = directory / f"libamd_smi.so.{abi}"
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-DABI={abi}"]
    command += [f"-D{symbol}=absent_{symbol}" for symbol in without]
    subprocess.run([*command, "-o", str(library), str(_HERE / "fake_amd_smi.c")], check=True, timeout=60)
    return library


def copies(count: int) -> list[str]:
    """Return the lines that make ``count`` GPUs: the two of the base and copies of the first."""
    base = [line[2:] for line in (_HERE / "mi300x.scenario").read_text().splitlines() if line.startswith("0 ")]
    own = ("amdsmi_get_gpu_device_bdf", "amdsmi_get_gpu_asic_info.asic_serial")
    lines = [f"system gpus {count}"]
    for index in range(2, count):
        lines += [f"{index} {line}" for line in base if not line.startswith(own)]
        lines += [f"{index} {own[0]} 0000:{0x30 + index:02x}:00.0", f"{index} {own[1]} a1b2{index:012x}"]
    return lines


def sysfs(root: Path, gpus: int = 2) -> Path:
    """Make a PCI bus with accelerators of AMD under ``root`` and return it."""
    for index in range(gpus):
        device = root / f"bus/pci/devices/0000:{index:02x}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1002\n")
        (device / "class").write_text("0x120000\n")
    return root


class Scenario(fake.Scenario):
    """The file that drives the library; it starts as ``base``, a file in this folder."""

    folder = _HERE
    variable = "FAKE_AMD_SMI_SCENARIO"

    def __init__(self, path: Path, base: str = "mi300x.scenario") -> None:
        super().__init__(path, base)
