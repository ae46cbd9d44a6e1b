"""The demo's processes: a training job, and the servers that watch it.

Everything listens on loopback, writes into one folder, and ends with the context.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from laggard.shared import statefile
from laggard_cli.demo.acts import RANKS
from laggard_cli.demo.servers import Servers
from laggard_cli.pack import pack_folder

_BATCH = 4


class Stack(Servers):
    """Starts everything on entry and ends everything on exit, whatever happened."""

    def __init__(self, folder: Path, run: str) -> None:
        super().__init__(folder, run, RANKS)
        self._state_directory = self.state_directories[0]

    def __exit__(self, *_: object) -> None:
        # The launcher gives each rank a session of its own; a stopped rank could not even obey its SIGTERM.
        self.signal_ranks(signal.SIGCONT)
        children = [child for process in self._processes.values() for child in _children(process)]
        super().__exit__()
        # A rank that is still on its way to the first step has no state file, and may hear no SIGTERM in native code.
        self.signal_ranks(signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)

    def signal_ranks(self, number: signal.Signals, rank: int | None = None) -> None:
        """Send a signal to one rank, or to all that live."""
        for path in self._state_directory.glob(f"*{statefile.SUFFIX}"):
            with contextlib.suppress(statefile.StateFileError, ProcessLookupError):
                snapshot = statefile.read(path)
                if snapshot.alive and rank in (None, snapshot.facts.rank):
                    os.kill(snapshot.holder_pid, number)

    def control(self, content: dict[str, Any]) -> None:
        """Tell the ranks what to do; they see the old or the new content, never half of it."""
        path = self.folder / "control"
        path.with_suffix(".new").write_text(json.dumps(content))
        path.with_suffix(".new").replace(path)

    def finish_training(self) -> None:
        """Have all ranks end after the same step, soon."""
        steps = int((self.folder / "steps").read_text())
        self.control({"last_step": steps + 40})

    def training_ended(self) -> bool:
        """Say whether the job is over."""
        return self._processes["training"].poll() is not None

    def _start(self) -> None:
        self.control({})
        self._launch_servers()
        self._launch("training", self._training(), self._training_environment())
        self._wait_for_servers()

    def _training(self) -> list[str]:
        laggard = [sys.executable, "-m", "laggard_cli.main", "run", "--run", self.run, "--workload", "char-gpt"]
        torchrun = ["torchrun", "--standalone", "--nproc-per-node", str(RANKS)]
        script = str(resources.files("laggard_cli.demo").joinpath("faulty.py"))
        checkpoints = ["--checkpoint", str(self.folder / "model.pt"), "--checkpoint-seconds", "8"]
        return [*laggard, *torchrun, script, "--batch", str(_BATCH), "--width", "64", *checkpoints]

    def _training_environment(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            # What torchrun leaves behind when it is interrupted goes with the folder.
            "TMPDIR": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(self.rank_ports[0]),
            # With more ranks than processors a hook seems to take long whenever it is put aside.
            "LAGGARD_BUDGET": "0",
            "LAGGARD_STATE_DIR": str(self._state_directory),
            "LAGGARD_DEMO_CONTROL": str(self.folder / "control"),
            "LAGGARD_DEMO_SCRIPT": str(pack_folder("examples") / "char_gpt.py"),
        }


def _children(process: subprocess.Popen[bytes]) -> list[int]:
    """Return a descriptor for each child of a process, by which it can be ended and no other one."""
    children: list[int] = []
    for listed in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it ends just now
            children += map(os.pidfd_open, map(int, listed.read_text().split()))
    return children
