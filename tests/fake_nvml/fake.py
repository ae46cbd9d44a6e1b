"""Compiles the fake NVML and writes its scenarios."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

_HERE = Path(__file__).parent
SONAME = "libnvidia-ml.so.1"


def build(directory: Path, *, without: Iterable[str] = ()) -> Path:
    """Compile the library into ``directory`` and return its path. ``without`` names symbols that are left out."""
    library = directory / SONAME
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]
    command += [f"-D{symbol}=absent_{symbol}" for symbol in without]
    subprocess.run([*command, "-o", str(library), str(_HERE / "fake_nvml.c")], check=True, timeout=60)
    return library


#: Lines that make the second GPU one with MIG devices, a fan and everything else that an H100 has not.
EVERYTHING = (
    "1 nvmlDeviceGetNumFans 1",
    "1 nvmlDeviceGetFanSpeed_v2.0 40",
    "1 nvmlDeviceGetMigMode 1",
    "1/0 nvmlDeviceGetUUID MIG-0",
    "1/0 nvmlDeviceGetGpuInstanceId 2",
    "1/0 nvmlDeviceGetComputeInstanceId 0",
    "1/0 nvmlDeviceGetName NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "1/0 nvmlDeviceGetMemoryInfo_v2 42949672960 0 32212254720 10737418240",
    "1 gpm.2.2 50",
    "1 gpm.2.3 25",
    "1 gpm.2.5 12.5",
    "1 gpm.2.10 75",
    "1 gpm.248 1000",
    "1 gpm.249 800",
    "1 gpm.250 600",
    "1 field.29 3 1",
    "1 field.30 3 2",
    "1 field.31 1 0",
    "1 nvmlDeviceGetComputeRunningProcesses 4294967294:1024:2:0",
    "1 nvmlDeviceGetProcessUtilization 4294967294:25:1",
)


def copies(count: int) -> list[str]:
    """Return the lines that make ``count`` GPUs: the two of the base and copies of the first."""
    base = [line[2:] for line in (_HERE / "h100.scenario").read_text().splitlines() if line.startswith("0 ")]
    own = ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3")
    lines = [f"system gpus {count}"]
    for index in range(2, count):
        lines += [f"{index} {line}" for line in base if not line.startswith(own)]
        lines += [f"{index} {own[0]} GPU-{index:08d}", f"{index} {own[1]} 00000000:{index:02X}:00.0"]
    return lines


class Scenario:
    """The file that drives the library; it starts as ``base``, a file in :attr:`folder`."""

    folder = _HERE
    variable = "FAKE_NVML_SCENARIO"

    def __init__(self, path: Path, base: str = "h100.scenario") -> None:
        self.path = path
        self._base = (self.folder / base).read_text()
        self.write()

    def write(self, *lines: str) -> None:
        """Make the scenario the base and ``lines``, which replaces lines of an earlier call."""
        new = self.path.with_suffix(".new")
        # Bytes that are no UTF-8 are written with surrogates.
        new.write_text(self._base + "\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
        new.rename(self.path)

    def environment(self, library: Path) -> dict[str, str]:
        """Return the variables that make a process use ``library`` with this scenario."""
        return {"LD_LIBRARY_PATH": str(library.parent), self.variable: str(self.path)}
