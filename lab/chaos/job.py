"""A job: the ranks of one run, each a process of its own, as a cluster's scheduler starts them, on two nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.shared import statefile
from laggard_cli.run import defaults

if TYPE_CHECKING:
    from typing_extensions import Self

_FOLDER = Path(__file__).parent
PROGRAM, TIMED_PROGRAM = _FOLDER / "rank.py", _FOLDER / "timed.py"
_BINARIES = Path(sys.executable).parent


class Job:
    """Starts the ranks on entry, kills what is left of them on exit.

    Args:
        folder: of the job alone.
        run: its name.
        world: number of ranks.
        ports: of the ranks' meeting, and of their metrics.
        state_directories: of the nodes, on which the ranks are spread evenly.
        environment: more of it.
        flags: of the rank's program.
        instrumented: whether laggard looks on.
        prefix: a command for each rank, such as one that enters a network namespace.
        program: of each rank.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        world: int,
        ports: Sequence[int],
        state_directories: Sequence[Path],
        *,
        environment: dict[str, str] | None = None,
        flags: Sequence[str] = (),
        instrumented: bool = True,
        prefix: Sequence[Sequence[str]] = (),
        program: Path = PROGRAM,
    ) -> None:
        self.folder = folder
        self.run = run
        self.world = world
        self.processes: list[subprocess.Popen[bytes]] = []
        self._ports = ports
        self._state_directories = state_directories
        self._environment = environment or {}
        self._flags = flags
        self._instrumented = instrumented
        self._prefix = prefix or [()] * world
        self._program = program

    def __enter__(self) -> Self:
        self.folder.mkdir()
        for rank in range(self.world):
            self._start(rank)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            # The rank's own helpers too: they are of its session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for directory in self._state_directories:
            for path in directory.glob(f"*{statefile.SUFFIX}"):
                with contextlib.suppress(statefile.StateFileError):
                    if statefile.read(path).facts.run == self.run:
                        path.unlink(missing_ok=True)

    def node(self, rank: int) -> int:
        """Return the node that a rank is on."""
        return rank * len(self._state_directories) // self.world

    def log(self, rank: int) -> str:
        """Return what a rank has printed."""
        return (self.folder / f"log{rank}").read_text(errors="replace")

    def workers(self, rank: int) -> list[int]:
        """Return the rank's data workers."""
        tasks = Path(f"/proc/{self.processes[rank].pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
        return [child for child in children if "pt_data_worker" in Path(f"/proc/{child}/comm").read_text()]

    def _start(self, rank: int) -> None:
        # What a launcher or another run has set is not this job's.
        foreign = ("LAGGARD_", "OTEL_", "CHAOS_", "SLURM_", "TORCHELASTIC_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment |= {
            "PATH": f"{_BINARIES}{os.pathsep}{environment.get('PATH', '')}",
            "PYTHONPATH": str(_FOLDER.parent),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._ports[0]),
            "OMP_NUM_THREADS": "1",
            "CHAOS_FOLDER": str(self.folder),
            "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(self._ports[1]),
            "LAGGARD_STATE_DIR": str(self._state_directories[self.node(rank)]),
            # With more ranks than processors a hook seems to take long whenever it is put aside.
            "LAGGARD_BUDGET": "0",
            **self._environment,
        }
        command = [sys.executable, str(self._program), *self._flags]
        if self._instrumented:
            environment |= defaults(environment, self.run, "chaos")
            command = [str(_BINARIES / "opentelemetry-instrument"), *command]
        with (self.folder / f"log{rank}").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [*self._prefix[rank], *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
