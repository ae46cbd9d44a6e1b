"""A small OTLP/HTTP receiver on loopback: what a rank really sends, kept as plain data."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typing_extensions import Self

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Histogram:
    """A histogram's newest point."""

    count: int
    sum: float

    @property
    def mean(self) -> float:
        """Mean of the observations."""
        return self.sum / self.count


class Receiver:
    """Keeps the newest point of every series of every process, and every span."""

    def __init__(self) -> None:
        self.points: dict[tuple[str, str, Labels], float | Histogram] = {}
        self.spans: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path.endswith("metrics"):
                    receiver.take_metrics(body)
                else:
                    receiver.take_spans(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What sends a process's metrics and spans here, by OpenTelemetry's plain environment variables."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_LOGS_EXPORTER": "none",
        }

    def take_metrics(self, body: bytes) -> None:
        """Keep the points of one export."""
        request = ExportMetricsServiceRequest.FromString(body)
        for resource in request.resource_metrics:
            instance = next(
                (a.value.string_value for a in resource.resource.attributes if a.key == "service.instance.id"), ""
            )
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                kind = str(metric.WhichOneof("data"))
                for point in getattr(metric, kind).data_points:
                    labels = frozenset((a.key, a.value.string_value) for a in point.attributes)
                    if kind == "histogram":
                        value: float | Histogram = Histogram(point.count, point.sum)
                    else:
                        value = point.as_double or float(point.as_int)
                    self.points[instance, metric.name, labels] = value

    def take_spans(self, body: bytes) -> None:
        """Keep the spans of one export."""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def series(self, name: str, **labels: str) -> dict[Labels, Any]:
        """Return the points of a metric whose labels (dots as double underscores) have these values."""
        wanted = {(key.replace("__", "."), value) for key, value in labels.items()}
        return {found: value for (_, n, found), value in self.points.items() if n == name and wanted <= found}

    def value(self, name: str, **labels: str) -> Any:
        """Return the one point of a metric with these labels."""
        (value,) = self.series(name, **labels).values()
        return value
