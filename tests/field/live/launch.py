"""The environment in which a live job starts: of its own settings alone, beside the servers that watch it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
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


@contextlib.contextmanager
def job(servers: Servers, run: str, *launcher: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start what launches a run's ranks, in a session of its own; it is asked to end afterwards, and then made to."""
    command = [str(BINARIES / "laggard"), "run", "--run", run, *launcher]
    with (servers.folder / f"{run}.log").open("wb") as log:
        started = subprocess.Popen(
            command, env=environment(servers), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(40)
        started.kill()
        started.wait()
