"""Launching of real training scripts under OpenTelemetry's own launcher, or from a process that has torch already."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from opentelemetry.instrumentation import auto_instrumentation
from typing_extensions import Self

PROGRAMS = Path(__file__).parent.parent / "instrumentation" / "programs"
#: Environment of a launcher or of another test that must not leak into a launched process.
_FOREIGN = ("LAGGARD_", "OTEL_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_", "TORCHELASTIC_", "MASTER_")
#: But for what `make test-python-hot-path` says of all ranks.
_KEPT = ("LAGGARD_HOT_PATH",)
_BINARIES = Path(sys.executable).parent
_SUPPORT = Path(__file__).parent
#: Nobody waits for them, since another process may need them for longer.
_servers: list[subprocess.Popen[bytes]] = []


@functools.cache
def _fork_server() -> Path:
    """Return the socket of the fork server: the first process of a test run that asks for it starts it for all."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir(), f"laggard-fork-server-{run}")
    folder.mkdir(mode=0o700, exist_ok=True)
    path, held = folder / "socket", folder / "held"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            os.mkfifo(held)
            input_end = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(path))
                listener.listen()
                _servers.append(
                    subprocess.Popen(
                        [sys.executable, _SUPPORT / "fork_server.py", str(listener.fileno())],
                        env={**_inherited(), "OMP_NUM_THREADS": "1"},
                        stdin=input_end,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[listener.fileno()],
                    )
                )
            os.close(input_end)
        # Open until this process ends: the server ends with the last one.
        os.open(held, os.O_WRONLY)
    return path


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_FOREIGN)}


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
        return self._start(_BINARIES / "opentelemetry-instrument", *command, **environment)

    def fork(self, *program: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Start a Python program in a process that has torch already, for tests of what comes after its import."""
        return self._fork(None, *program, **environment)

    def fork_ranks(self, size: int, *program: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Start so many ranks of a program in the same way; the process ends when all of them have, or one fails."""
        return self._fork(size, *program, **environment)

    def _fork(self, size: int | None, *program: str | Path, **environment: str) -> subprocess.Popen[str]:
        request = json.dumps({"command": [*map(str, program)], "size": size})
        # As its launcher does: what the program starts is instrumented too.
        python_path = os.pathsep.join((str(Path(auto_instrumentation.__file__).parent), str(Path.cwd())))
        client = [sys.executable, "-S", _SUPPORT / "fork_client.py", _fork_server(), request]
        return self._start(*client, **{"PYTHONPATH": python_path, **environment})

    def _start(self, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
        inherited = _inherited()
        defaults = {
            "PATH": f"{_BINARIES}{os.pathsep}{inherited.get('PATH', '')}",
            "LAGGARD_RUN": "test",
            "LAGGARD_STATE_DIR": str(self.state_directory),
            "LAGGARD_STEP_RATE": "0",  # how many of a few short steps are recorded would depend on the machine
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [*map(str, command)],
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
        return self._to_its_end(self.start(*command, **environment))

    def run_forked(self, *program: str | Path, **environment: str) -> str:
        """Run a program to a good end as :meth:`fork` starts it, and return what it printed."""
        return self._to_its_end(self.fork(*program, **environment))

    def run_ranks(self, size: int, *program: str | Path, **environment: str) -> str:
        """Run ranks of a program to a good end as :meth:`fork_ranks` starts them, and return what they printed."""
        return self._to_its_end(self.fork_ranks(size, *program, **environment))

    @staticmethod
    def _to_its_end(process: subprocess.Popen[str]) -> str:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        return output
