"""Reads the files of Intel's driver ``xe`` in a process of its own: one that hangs costs the answer of its GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SUCCESS, ABSENT, NO_DRIVER = 0, 1, 2


class Driver:
    """Answers calls by the name of a file of the GPU; two names are its own: ``open``, and ``count``."""

    def __init__(self) -> None:
        self._gpus: list[Path] = []

    def call(self, function: str, device: Any, arguments: Any) -> tuple[int, Any]:
        """Return a return code and a plain value."""
        if function == "open":
            drivers = Path(*arguments) / "bus/pci/drivers/xe"
            self._gpus = sorted(link for link in drivers.glob("*:*") if link.is_dir())
            return (SUCCESS, True) if drivers.is_dir() else (NO_DRIVER, None)
        if function == "count":
            return SUCCESS, len(self._gpus)
        if function == "address":
            return SUCCESS, self._gpus[device].name
        try:
            # A file that is not there is nothing that this GPU has.
            return SUCCESS, int(next(self._gpus[device].glob(function)).read_text(encoding="ascii"))
        except (OSError, StopIteration, ValueError):
            return ABSENT, None


if __name__ == "__main__":
    sys.path += sys.argv[1:-1]
    from laggard_exporter.gpus.child.serving import serve

    serve(int(sys.argv[-1]), lambda _: Driver())
