"""The demo's processes: a training job, a node exporter, Prometheus, Alertmanager, and a pager that Alertmanager calls.

Everything listens on loopback, writes into one folder, and ends with the context.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from laggard import statefile
from laggard_cli.demo import configuration
from laggard_cli.demo.acts import RANKS
from laggard_cli.demo.pager import Pager
from laggard_cli.errors import CommandError
from laggard_cli.pack import pack_folder

if TYPE_CHECKING:
    from typing_extensions import Self

_START_SECONDS = 60
_END_SECONDS = 10
_BATCH = 16

#: First and last port of outgoing connections, of which a job with process groups makes many.
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")

#: Programs that the demo needs, by the names under which they may be installed.
_PROGRAMS = {"prometheus": ("prometheus",), "alertmanager": ("alertmanager", "prometheus-alertmanager")}


class Stack:
    """Starts everything on entry and ends everything on exit, whatever happened."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run
        self._state_directory = folder / "state"
        self.pages: list[dict[str, Any]] = []
        """Alerts as the pager got them, each once, the newest last."""
        self._programs = {name: _find(name, alternatives) for name, alternatives in _PROGRAMS.items()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cleanup = contextlib.ExitStack()
        ranks = _free_ports(RANKS)
        exporter, prometheus, alertmanager = _free_ports(3)
        self._rank_port = ranks[0]
        self._targets = {"ranks": ranks, "exporter": [exporter]}
        self.addresses = {
            "prometheus": f"http://127.0.0.1:{prometheus}",
            "alertmanager": f"http://127.0.0.1:{alertmanager}",
            "exporter": f"http://127.0.0.1:{exporter}",
        }

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The launcher gives each rank a session of its own; a stopped rank could not even obey its SIGTERM.
        self.signal_ranks(signal.SIGCONT)
        children = [child for process in self._processes.values() for child in _children(process)]
        for process in reversed(list(self._processes.values())):
            _end(process)
        # A rank that is still on its way to the first step has no state file, and may hear no SIGTERM in native code.
        self.signal_ranks(signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)
        self._cleanup.close()

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

    def check(self) -> None:
        """Raise :class:`CommandError` with the end of its log when a process died."""
        for name, process in self._processes.items():
            if process.poll() not in (None, 0):
                log = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
                raise CommandError(f"{name} ended with code {process.returncode}:\n  " + "\n  ".join(log))

    def _start(self) -> None:
        self.control({})
        pager = Pager(self.pages)
        self._cleanup.callback(pager.close)
        configuration.write(self.folder, self.run, self.addresses, self._targets, pager.port)
        self._launch("alertmanager", self._alertmanager())
        self._launch("prometheus", self._prometheus())
        self._launch("exporter", self._exporter())
        self._launch("training", self._training(), self._training_environment())
        self._wait("prometheus", self._rules_run)
        self._wait("alertmanager", lambda: httpx.get(f"{self.addresses['alertmanager']}/-/ready").is_success)
        self._wait("exporter", lambda: httpx.get(f"{self.addresses['exporter']}/-/healthy").is_success)

    def _rules_run(self) -> bool:
        """Say whether Prometheus has evaluated the rules: it is ready a moment before."""
        query = {"query": "laggard_rules_info"}
        answer = httpx.get(f"{self.addresses['prometheus']}/api/v1/query", params=query)
        return answer.is_success and bool(answer.json()["data"]["result"])

    def _alertmanager(self) -> list[str]:
        return [
            self._programs["alertmanager"],
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'alertmanager'}",
            f"--web.listen-address={_host(self.addresses['alertmanager'])}",
            "--cluster.listen-address=",
        ]

    def _prometheus(self) -> list[str]:
        return [
            self._programs["prometheus"],
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'prometheus'}",
            f"--web.listen-address={_host(self.addresses['prometheus'])}",
        ]

    def _exporter(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "laggard_exporter.main",
            f"--web.listen-address={_host(self.addresses['exporter'])}",
            f"--state.directory={self._state_directory}",
        ]

    def _training(self) -> list[str]:
        laggard = [sys.executable, "-m", "laggard_cli.main", "run", "--run", self.run, "--workload", "char-gpt"]
        torchrun = ["torchrun", "--standalone", "--nproc-per-node", str(RANKS)]
        script = str(resources.files("laggard_cli.demo").joinpath("faulty.py"))
        checkpoints = ["--checkpoint", str(self.folder / "model.pt"), "--checkpoint-seconds", "8"]
        return [*laggard, *torchrun, script, "--batch", str(_BATCH), "--width", "128", *checkpoints]

    def _training_environment(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            # What torchrun leaves behind when it is interrupted goes with the folder.
            "TMPDIR": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(self._rank_port),
            # With more ranks than processors a hook seems to take long whenever it is put aside.
            "LAGGARD_BUDGET": "0",
            "LAGGARD_STATE_DIR": str(self._state_directory),
            "LAGGARD_DEMO_CONTROL": str(self.folder / "control"),
            "LAGGARD_DEMO_SCRIPT": str(pack_folder("examples") / "char_gpt.py"),
        }

    def _launch(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the others in order.
            self._processes[name] = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(httpx.TransportError):
                if ready():
                    return
            time.sleep(0.2)
        raise CommandError(f"{name} did not become ready within {_START_SECONDS} s; its log is in {self.folder}")


def _find(name: str, alternatives: tuple[str, ...]) -> str:
    for alternative in alternatives:
        found = shutil.which(alternative)
        if found:
            return found
    raise CommandError(f"{name} is not on PATH; on Debian: apt-get install prometheus prometheus-alertmanager")


def _free_ports(count: int) -> list[int]:
    """Return consecutive ports that are free now, and that the kernel gives to no outgoing connection meanwhile."""
    first_outgoing = int(_OUTGOING_PORTS.read_text().split()[0])
    for _ in range(100):
        ports = range(first := random.randrange(first_outgoing // 2, first_outgoing - count), first + count)  # noqa: S311
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in ports:
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            return list(ports)
    raise CommandError(f"no {count} consecutive free ports on 127.0.0.1")


def _host(address: str) -> str:
    return address.removeprefix("http://")


def _children(process: subprocess.Popen[bytes]) -> list[int]:
    """Return a descriptor for each child of a process, by which it can be ended and no other one."""
    children: list[int] = []
    for listed in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it ends just now
            children += map(os.pidfd_open, map(int, listed.read_text().split()))
    return children


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, first politely."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
