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


class Scenario:
    """The file that drives the library; it starts as ``h100.scenario``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base = (_HERE / "h100.scenario").read_text()
        self.write()

    def write(self, *lines: str) -> None:
        """Make the scenario the base and ``lines``, which replaces lines of an earlier call."""
        new = self.path.with_suffix(".new")
        # Bytes that are no UTF-8 are written with surrogates.
        new.write_text(self._base + "\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
        new.rename(self.path)

    def environment(self, library: Path) -> dict[str, str]:
        """Return the variables that make a process use ``library`` with this scenario."""
        return {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_SCENARIO": str(self.path)}
