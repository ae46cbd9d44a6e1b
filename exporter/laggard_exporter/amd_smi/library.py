"""What the return codes of AMD SMI mean, and how its process starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from laggard_exporter.amd_smi import child
from laggard_exporter.amd_smi.child import codes
from laggard_exporter.gpus.child_process import Child, Request
from laggard_exporter.gpus.session import Library

_INIT_FLAG_GPUS = 1 << 1

AMD_SMI = Library(
    "AMD SMI",
    Request("amdsmi_init", None, (_INIT_FLAG_GPUS,)),
    open_status={
        codes.LIBRARY_NOT_FOUND: "library_not_found",
        codes.DRIVER_NOT_LOADED: "driver_not_loaded",
        codes.VERSION_MISMATCH: "version_unknown",
        codes.NO_PERM: "no_permission",
    },
    session_lost={codes.NOT_INIT, codes.DRIVER_NOT_LOADED},
    # No code means it: of a GPU that is gone, files are missing like those of what it does not have.
    device_lost=frozenset(),
    unsupported={
        codes.NOT_SUPPORTED,
        codes.NOT_YET_IMPLEMENTED,
        codes.NOT_FOUND,
        codes.NO_DATA,
        codes.FILE_NOT_FOUND,
        codes.FUNCTION_NOT_FOUND,
    },
    no_permission=codes.NO_PERM,
)


def start(environment: Mapping[str, str] | None = None) -> Child:
    """Start a process for AMD SMI. Raises :class:`OSError` when it cannot be started."""
    return Child(Path(child.__path__[0], "__main__.py"), environment=environment)
