"""The OpenTelemetry Collector between ranks and server: agents and a gateway, as otel-collector configures them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab.scale.programs import Programs
from lab.scale.prometheus import Metrics, metrics, targets, total
from laggard_cli.demo.servers import free_ports
from laggard_cli.errors import CommandError

_ROOT = Path(__file__).parents[2]
COLLECTOR = _ROOT / ".cache" / "tools" / "bin" / "otelcol-laggard"
_CONFIGURATIONS = _ROOT / "otel-collector"
GATEWAY = "gateway"
#: An agent stands for those of hundreds of nodes here: it may have what the gateway has.
_MEMORY_MIB = 1500


@dataclass(frozen=True)
class Flow:
    """What went through a Collector so far, in data points, and what waits in its queue."""

    accepted: float
    #: Not taken: who sent it is told, and sends it again.
    refused: float
    sent: float
    waiting: float


class Collectors:
    """Agents and their gateway.

    Args:
        started: what starts them.
        agents: how many there are.
        write: where the gateway writes to.
        pages: the port of the exporters' pages, and their paths: agents share them.
        interval: of their scrapes, in seconds.
    """

    def __init__(
        self, started: Programs, agents: int, write: str, pages: tuple[int, list[str]], interval: float
    ) -> None:
        if not COLLECTOR.exists():
            raise CommandError("no Collector: run scripts/tools/build_collector.sh, which needs Go")
        ports = iter(free_ports(4 * agents + 3))
        self._own = {GATEWAY: next(ports)}
        #: Where agents take what ranks push.
        self.ports: list[int] = []
        grpc, health = next(ports), next(ports)
        folder = started.folder
        environment = {
            "METRICS_ENDPOINT": write,
            "SPANS_ENDPOINT": "http://127.0.0.1:1",
            "STATE_DIR": str(folder / GATEWAY),
            "OTLP_GRPC": f"127.0.0.1:{grpc}",
        }
        self._start(started, GATEWAY, ["gateway.yaml"], environment, health)
        port, paths = pages
        for number in range(agents):
            name = f"agent-{number}"
            share = folder / f"{name}.yaml"
            scraped = targets(port, paths[number::agents])
            share.write_text(yaml.safe_dump({"receivers": {"prometheus": {"config": {"scrape_configs": scraped}}}}))
            self._own[name] = next(ports)
            self.ports.append(next(ports))
            environment = {
                "GATEWAY": f"127.0.0.1:{grpc}",
                "GATEWAYS": f"[127.0.0.1:{grpc}]",
                "STATE_DIR": str(folder / name),
                "OTLP_GRPC": f"127.0.0.1:{next(ports)}",
                "OTLP_HTTP": f"127.0.0.1:{self.ports[-1]}",
                "INTERVAL": f"{interval:g}s",
                "SCRAPE_TIMEOUT": f"{interval * 2000 / 3:.0f}ms",
                "MEMORY_MIB": str(_MEMORY_MIB),
            }
            self._start(started, name, ["agent.yaml", share], environment, next(ports))
        started.wait(*self.names)

    @property
    def names(self) -> list[str]:
        """The gateway and the agents."""
        return list(self._own)

    def flows(self) -> dict[str, Flow]:
        """Ask each what went through it; one that is away is left out."""
        found: dict[str, Flow] = {}
        for name, port in self._own.items():
            known = metrics(f"http://localhost:{port}")
            if known:
                found[name] = _flow(known)
        return found

    def _start(
        self, started: Programs, name: str, files: list[str | Path], environment: Mapping[str, str], health: int
    ) -> None:
        given = {**environment, "HEALTH": f"127.0.0.1:{health}", "SELF_PORT": str(self._own[name])}
        configurations = [f"--config={_CONFIGURATIONS / file}" for file in files]
        started.start(name, [COLLECTOR, *configurations], f"http://127.0.0.1:{health}/", given)


def _flow(known: Metrics) -> Flow:
    return Flow(
        accepted=total(known, "otelcol_receiver_accepted_metric_points_total"),
        refused=total(known, "otelcol_receiver_refused_metric_points_total"),
        sent=total(known, "otelcol_exporter_sent_metric_points_total"),
        waiting=total(known, "otelcol_exporter_queue_size"),
    )
