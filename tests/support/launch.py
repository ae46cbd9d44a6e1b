"""Launching of real training scripts under OpenTelemetry's own launcher."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
from typing_extensions import Self

PROGRAMS = Path(__file__).parent.parent / "instrumentation" / "programs"
#: Environment of a launcher or of another test that must not leak into a launched process.
_FOREIGN = ("LAGGARD_", "OTEL_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_", "TORCHELASTIC_", "MASTER_")
_BINARIES = Path(sys.executable).parent


class Launcher:
    """Starts commands, instrumented, each in a session of its own that does not outlive the context."""

    def __init__(self, folder: Path) -> None:
        self.state_directory = folder / "state"
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                # Each rank of torchrun has a session of its own, and holds the pipes for as long as it lives.
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                process.kill()
            process.communicate()  # also closes the pipes

    def start(self, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Start a command; what it exports goes nowhere unless ``environment`` says otherwise."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        defaults = {
            "PATH": f"{_BINARIES}{os.pathsep}{inherited.get('PATH', '')}",
            "LAGGARD_RUN": "test",
            "LAGGARD_STATE_DIR": str(self.state_directory),
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [str(_BINARIES / "opentelemetry-instrument"), *map(str, command)],
            env={**inherited, **defaults, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, *command: str | Path, **environment: str) -> str:
        """Run a command to a good end and return what it printed."""
        process = self.start(*command, **environment)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        return output
