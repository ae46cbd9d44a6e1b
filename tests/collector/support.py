"""Collectors and Prometheus servers of the tests, all on loopback, in one folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
COLLECTOR = ROOT / ".cache" / "tools" / "bin" / "otelcol-laggard"
CONFIGURATIONS = ROOT / "otel-collector"
TIMEOUT = 60


def missing(text: str) -> None:
    """Skip the test, or fail it in CI where what is missing could have been built."""
    if os.environ.get("CI") and shutil.which("go"):
        pytest.fail(text)
    pytest.skip(text)


def collector() -> Path:
    """Return the Collector that was built from our manifest."""
    if not COLLECTOR.exists():
        missing("no Collector: run scripts/tools/build_collector.sh, which needs Go")
    return COLLECTOR


def newest_prometheus() -> Path:
    """Return the newest Prometheus, which takes OTLP."""
    found = sorted(
        (ROOT / ".cache" / "tools").glob("prometheus-*"),
        key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)],
    )
    # Those of distributions are built without what takes OTLP.
    newest = [path for path in found if not path.name.startswith(("prometheus-2.", "prometheus-3.5."))]
    if not newest:
        missing("no Prometheus that takes OTLP: run scripts/tools/build_rule_engine.sh, which needs Go")
    return newest[-1]


class Processes:
    """Starts programs and ends them all, by their ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        at: Path | None = None,
    ) -> None:
        """Start a program, in the folder or at another place; it writes its log into the folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                list(map(str, command)),
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=at or self.folder,
            )

    def kill(self, name: str) -> None:
        """Kill a program as a crash would."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(TIMEOUT)

    def wait(self, name: str, url: str) -> None:
        """Wait until a program answers."""
        until(lambda: self._answers(name, url), f"{name} does not answer")

    def log(self, name: str) -> str:
        """Return what a program has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def end(self) -> None:
        """End all."""
        for name in list(self._processes):
            self.kill(name)

    def _answers(self, name: str, url: str) -> bool:
        assert self._processes[name].poll() is None, self.log(name)[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT):
                return True
        except OSError:
            return False


@contextlib.contextmanager
def processes(folder: Path) -> Generator[Processes, None, None]:
    """Yield what starts programs; all end with the context."""
    started = Processes(folder)
    try:
        yield started
    finally:
        started.end()


def named(ports: Sequence[int], *names: str) -> dict[str, int]:
    """Return the ports by what they are for."""
    return dict(zip(names, ports, strict=True))


def alertmanager(folder: Path, address: str) -> list[str | Path]:
    """Return the command of an Alertmanager with the configuration of deploy/alertmanager."""
    if shutil.which("prometheus-alertmanager") is None:
        missing("prometheus-alertmanager is missing: scripts/tools/fetch_servers.sh")
    return [
        "prometheus-alertmanager",
        f"--config.file={ROOT / 'deploy' / 'alertmanager' / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager-data'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]


def agent(folder: Path, ports: Mapping[str, int], gateways: Sequence[int]) -> tuple[list[str | Path], dict[str, str]]:
    """Return command and environment of an agent. ``ports``: grpc, http, health, self and exporter."""
    return [collector(), "--config", CONFIGURATIONS / "agent.yaml"], {
        "GATEWAY": f"127.0.0.1:{gateways[0]}",
        "GATEWAYS": f"[{', '.join(f'127.0.0.1:{port}' for port in gateways)}]",
        "STATE_DIR": str(folder / "agent"),
        "OTLP_GRPC": f"127.0.0.1:{ports['grpc']}",
        "OTLP_HTTP": f"127.0.0.1:{ports['http']}",
        "HEALTH": f"127.0.0.1:{ports['health']}",
        "SELF_PORT": str(ports["self"]),
        "NODE_EXPORTER": f"127.0.0.1:{ports['exporter']}",
        "INTERVAL": "1s",
        "SCRAPE_TIMEOUT": "1s",
    }


def gateway(
    folder: Path, ports: Mapping[str, int], metrics: str, spans: str, **more: str
) -> tuple[list[str | Path], dict[str, str]]:
    """Return command and environment of a gateway. ``ports``: grpc, health and self."""
    return [collector(), "--config", CONFIGURATIONS / "gateway.yaml"], {
        "METRICS_ENDPOINT": metrics,
        "SPANS_ENDPOINT": spans,
        "STATE_DIR": str(folder / f"gateway{ports['grpc']}"),
        "OTLP_GRPC": f"127.0.0.1:{ports['grpc']}",
        "HEALTH": f"127.0.0.1:{ports['health']}",
        "SELF_PORT": str(ports["self"]),
        "DECISION_WAIT": "1s",
        **more,
    }
