"""Whether and how to push: what the flag and the variables of OpenTelemetry say.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/ lists the variables. Those about headers, certificates,
compression and time limits are read by OpenTelemetry itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from laggard.shared.addresses import http_url

#: Seconds between two pushes where OTEL_METRIC_EXPORT_INTERVAL says nothing: OpenTelemetry's default.
INTERVAL = 60.0

#: Modules with an exporter, by protocol.
EXPORTERS = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
}


class OtlpError(Exception):
    """The variables of OpenTelemetry cannot be followed; the text says which, and what to do."""


@dataclass(frozen=True)
class Settings:
    """How to push."""

    exporter: str
    """Module of OpenTelemetry's exporter."""
    interval: float
    """Seconds between two pushes."""


def settings(endpoint: str) -> Settings | None:
    """Return how to push to ``endpoint``, or where the variables say; None where nothing says so.

    Raises :class:`OtlpError` for variables that cannot be followed.
    """
    if endpoint:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        os.environ.pop("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", None)
    elif not _wanted():
        return None
    protocol = _variable("PROTOCOL") or "http/protobuf"
    if protocol not in EXPORTERS:
        raise OtlpError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r}: choose from {', '.join(EXPORTERS)}")
    if protocol != "grpc":  # whose addresses need no scheme
        try:
            http_url(_variable("ENDPOINT"))
        except ValueError as error:
            raise OtlpError(f"OTEL_EXPORTER_OTLP_ENDPOINT {error}") from error
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    if text and not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise OtlpError(f"OTEL_METRIC_EXPORT_INTERVAL must be milliseconds above 0, got {text!r}")
    return Settings(EXPORTERS[protocol], int(text) / 1000 if text else INTERVAL)


def _wanted() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return bool(_variable("ENDPOINT")) and os.environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none"


def _variable(name: str) -> str:
    return os.environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")
