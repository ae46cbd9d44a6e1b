"""What watches a job on one machine: node exporters, Prometheus, Alertmanager, and a pager that Alertmanager calls.

Everything listens on loopback, writes into one folder, and ends with the context.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from laggard_cli.demo import configuration
from laggard_cli.demo.pager import Pager
from laggard_cli.errors import CommandError
from laggard_cli.local_servers import programs
from laggard_cli.local_servers.ports import free_ports
from laggard_cli.local_servers.processes import end, launch
from laggard_cli.ways import direct

if TYPE_CHECKING:
    from typing_extensions import Self

_START_SECONDS = 60

#: The names under which Alertmanager may be installed.
_ALERTMANAGER = ("alertmanager", "prometheus-alertmanager")


class Servers:
    """Starts the servers on entry and ends them on exit, whatever happened.

    Args:
        folder: gets configurations, data and logs.
        run: the run whose thresholds are the demo's.
        ranks: number of ports on loopback at which ranks serve metrics.
        nodes: node exporters, each with a folder of state files of its own.
        rules: name and text of each rule file; the demo's by default.
        interval: of scrapes, as Prometheus writes it.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        ranks: int,
        *,
        nodes: int = 1,
        rules: Mapping[str, str] | None = None,
        interval: str = "1s",
    ) -> None:
        self.folder = folder
        self.run = run
        self.state_directories = [folder / f"state{node or ''}" for node in range(nodes)]
        self.pages: list[dict[str, Any]] = []
        """Alerts as the pager got them, each once, the newest last."""
        self._programs = {"prometheus": programs.find_prometheus(), "alertmanager": _find_alertmanager()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cleanup = contextlib.ExitStack()
        self._rules = rules
        self._interval = interval
        ports = free_ports(ranks + nodes + 2)
        self.rank_ports, exporters = ports[:ranks], ports[ranks:-2]
        self._targets = {"ranks": self.rank_ports, "exporter": exporters}
        addresses = {
            "prometheus": ports[-2],
            "alertmanager": ports[-1],
            **{f"exporter{node or ''}": port for node, port in enumerate(exporters)},
        }
        self.addresses = {name: f"http://127.0.0.1:{port}" for name, port in addresses.items()}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(list(self._processes.values())):
            end(process)
        self._cleanup.close()

    def check(self) -> None:
        """Raise :class:`CommandError` with the end of its log when a process died."""
        for name, process in self._processes.items():
            if process.poll() not in (None, 0):
                log = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
                raise CommandError(f"{name} ended with code {process.returncode}: " + "; ".join(log))

    def kill(self, name: str) -> None:
        """Kill a server as a crash would, and forget it."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def start(self, *names: str, environment: dict[str, str] | None = None) -> None:
        """Start servers by their names, with more of an environment, and wait until they answer."""
        for name in names:
            self._launch(name, self._command(name), environment)
        for name in names:
            self._wait(name, self._rules_run if name == "prometheus" else lambda name=name: self._answers(name))

    def _start(self) -> None:
        self._launch_servers()
        self._wait_for_servers()

    def _launch_servers(self) -> None:
        pager = Pager(self.pages)
        self._cleanup.callback(pager.close)
        addresses, targets = self.addresses, self._targets
        configuration.write(
            self.folder, self.run, addresses, targets, pager.port, rules=self._rules, interval=self._interval
        )
        for name in addresses:
            self._launch(name, self._command(name))

    def _wait_for_servers(self) -> None:
        self._wait("prometheus", self._rules_run)
        for name in self.addresses:
            self._wait(name, lambda name=name: self._answers(name))

    def _rules_run(self) -> bool:
        """Say whether Prometheus has evaluated the rules: it is ready a moment before."""
        query = {"query": "laggard_rules_info"}
        answer = direct().get(f"{self.addresses['prometheus']}/api/v1/query", params=query)
        return answer.is_success and bool(answer.json()["data"]["result"])

    def _answers(self, name: str) -> bool:
        return direct().get(f"{self.addresses[name]}/-/healthy").is_success

    def _command(self, name: str) -> list[str]:
        if name == "alertmanager":
            return [
                self._programs["alertmanager"],
                f"--config.file={self.folder / 'alertmanager.yml'}",
                f"--storage.path={self.folder / 'alertmanager'}",
                f"--web.listen-address={_host(self.addresses['alertmanager'])}",
                "--cluster.listen-address=",
            ]
        address = _host(self.addresses[name])
        if name == "prometheus":
            return programs.prometheus(self._programs["prometheus"], self.folder, address)
        return programs.exporter(address, self.state_directories[int(name.removeprefix("exporter") or 0)])

    def _launch(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._processes[name] = launch(command, self.folder / f"{name}.log", environment)

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(httpx.TransportError):
                if ready():
                    return
            time.sleep(0.2)
        raise CommandError(f"{name} did not become ready within {_START_SECONDS} s; its log is in {self.folder}")


def _find_alertmanager() -> str:
    for name in _ALERTMANAGER:
        if found := shutil.which(name):
            return found
    raise CommandError("alertmanager is not on PATH; on Debian: apt-get install prometheus-alertmanager")


def _host(address: str) -> str:
    return address.removeprefix("http://")
