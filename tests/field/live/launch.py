"""The environment in which a live job starts: of its own settings alone, beside the servers that watch it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from laggard_cli.demo.servers import Servers

BINARIES = Path(sys.executable).parent


def environment(servers: Servers) -> dict[str, str]:
    """Return the variables of a job whose ranks ``servers`` watch."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LAGGARD_", "OTEL_"))},
        "PATH": f"{BINARIES}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(Path.cwd()),
        "OMP_NUM_THREADS": "1",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(servers.rank_ports[0]),
        "LAGGARD_STATE_DIR": str(servers.state_directories[0]),
    }
