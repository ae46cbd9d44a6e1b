"""What is done to laggard for minutes, and the clock that is set. ``OUTAGES`` has each by its name."""

from __future__ import annotations

import contextlib
import gzip
import subprocess
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from lab.chaos.faults import HANG_ALERTS
from lab.chaos.own_acts import WORLD, Act, Scene, endpoint, killed
from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus

_PROMETHEUS_SECONDS = 150.0
_ENDPOINT_SECONDS = 120.0
#: From the start of a job until the rules know its ranks, and until they miss them.
_KNOWN_SECONDS, _MISSED_SECONDS = 60.0, 100.0
_CLOCK_SECONDS = 3600
#: Long enough for a stall to be called one.
_WATCHED_SECONDS = 30.0
_CLOCK = Path(__file__).with_name("clock.c")


def _exporter(scene: Scene) -> Generator[dict[str, str], None, None]:
    run = f'training_run="{scene.folder.name}"'
    yield {}
    _await(scene, f"count(run_rank:training_process_up:last{{{run}}}) == {WORLD}", _KNOWN_SECONDS)
    scene.stack.servers.kill("exporter")
    alert = f'alertname="TrainingTelemetryDown",alertstate="firing",training_source="exporter",{run}'
    try:
        _await(scene, f"count(count by (training_rank) (ALERTS{{{alert}}})) == {WORLD}", _MISSED_SECONDS)
    finally:
        scene.stack.servers.start("exporter")
    yield {}


def _clock_set(seconds: int, *, exporter: bool = False) -> Act:
    """Return the act that sets the ranks' clock, and with ``exporter`` that of their node exporter too."""

    def act(scene: Scene) -> Generator[dict[str, str], None, None]:
        library = scene.folder.with_name(f"{scene.folder.name}.so")
        added = scene.folder.with_name(f"{scene.folder.name}.seconds")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, _CLOCK], check=True)
        added.write_bytes(bytes(8))
        environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(added)}
        clocks = [f'training_last_step_timestamp_seconds{{training_run="{scene.folder.name}"}}']
        with contextlib.ExitStack() as cleanup:
            if exporter:
                cleanup.callback(_restart_exporter, scene, {})
                _restart_exporter(scene, environment)
                instance = scene.stack.servers.addresses["exporter"].removeprefix("http://")
                success = "laggard_exporter_collector_last_success_timestamp_seconds"
                clocks.append(f'{success}{{instance="{instance}",collector="state"}}')
            yield environment
            with added.open("r+b") as file:
                file.write(seconds.to_bytes(8, "little", signed=True))
            scene.stack.pause(_WATCHED_SECONDS)
            for clock in clocks:
                _await(scene, f"abs(time() - max({clock})) > {abs(seconds) // 2}", 1)
            _no_alert(scene)
            yield {}

    return act


def _restart_exporter(scene: Scene, environment: dict[str, str]) -> None:
    scene.stack.servers.kill("exporter")
    scene.stack.servers.start("exporter", environment=environment)


def _no_alert(scene: Scene) -> None:
    alerts = f'ALERTS{{training_run="{scene.folder.name}",alertstate="firing",alertname=~"{"|".join(HANG_ALERTS)}"}}'
    prometheus = Prometheus(scene.stack.servers.addresses["prometheus"])
    with contextlib.closing(prometheus):
        if found := prometheus.query(alerts):
            raise CommandError(f"the clock was set and {found[0].labels['alertname']} fires")


def _endpoint(scene: Scene) -> Generator[dict[str, str], None, None]:
    """Take the endpoint away and bring it back; then every step must have arrived that the ranks made."""
    steps: dict[str, list[float]] = {}
    with contextlib.ExitStack() as servers:
        port = _receive(servers, 0, steps)
        yield endpoint(port)
        scene.stack.pause(5)
        servers.close()
        before = {rank: values[-1] for rank, values in steps.items()}
        scene.stack.pause(_ENDPOINT_SECONDS)
        _receive(servers, port, steps)
        yield {}
    if len(before) != WORLD:
        raise CommandError(f"before the endpoint went away it had heard of ranks {sorted(before)}")
    for rank, values in steps.items():
        made = len((scene.folder / f"losses{rank}").read_text().split(","))
        if values != sorted(values) or values[-1] != made:
            raise CommandError(f"of rank {rank} {values[-1]:.0f} of {made} steps arrived, or went backwards")


def _receive(stack: contextlib.ExitStack, port: int, steps: dict[str, list[float]]) -> int:
    """Receive metrics until the stack is closed, each rank's steps into ``steps``; return the port."""

    class Handler(BaseHTTPRequestHandler):
        """Takes what is posted."""

        def do_POST(self) -> None:
            """Keep the steps."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/metrics":
                body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                for rank, value in _steps(ExportMetricsServiceRequest.FromString(body)):
                    steps.setdefault(rank, []).append(value)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - its name there
            """Say nothing."""

    server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", port), Handler))
    stack.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def _steps(request: ExportMetricsServiceRequest) -> Generator[tuple[str, float], None, None]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == "training.steps":
                    for point in metric.sum.data_points:
                        attributes = {pair.key: pair.value for pair in point.attributes}
                        rank = attributes["training.rank"]
                        yield rank.string_value or str(rank.int_value), point.as_int or point.as_double


def _await(scene: Scene, expression: str, seconds: float) -> None:
    prometheus = Prometheus(scene.stack.servers.addresses["prometheus"])
    with contextlib.closing(prometheus):
        for _ in range(int(seconds)):
            if prometheus.query(expression):
                return
            scene.stack.pause(1)
    raise CommandError(f"not within {seconds:.0f} s: {expression}")


OUTAGES: dict[str, Act] = {
    "prometheus-away": killed("prometheus", _PROMETHEUS_SECONDS),
    "exporter-away": _exporter,
    "endpoint-away": _endpoint,
    "clock-stepped": _clock_set(-_CLOCK_SECONDS),
    "node-clock-stepped": _clock_set(_CLOCK_SECONDS, exporter=True),
}
