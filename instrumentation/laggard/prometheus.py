"""Prometheus endpoint of a rank: the ``opentelemetry_metrics_exporter`` named ``laggard_prometheus``.

Set ``OTEL_METRICS_EXPORTER=laggard_prometheus``. Each rank serves on ``OTEL_EXPORTER_PROMETHEUS_PORT`` (9464) plus its
local rank, or on the next free port, and on ``OTEL_EXPORTER_PROMETHEUS_HOST`` (localhost). The port is opened when the
process proves that it trains, so a launcher or a data worker that inherits the environment takes none.

Needs the extra ``otel``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, Metric, start_http_server

from laggard import _messages
from laggard.shared import environment
from laggard.shared.environment import (
    HIGHEST_PORT,
    OTEL_EXPORTER_PROMETHEUS_HOST,
    OTEL_EXPORTER_PROMETHEUS_PORT,
    PROMETHEUS_PORT,
)

_logger = logging.getLogger(__name__)
_messages.begin_with_our_name()

#: Ports tried after the first: two full nodes of ranks side by side.
_PORTS = 32
#: So old may a page be: the drain brings new values about once a second.
_PAGE_SECONDS = 0.25
#: What a page depends on, by its names in WSGI.
_ASKED = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING")


class _Registry(CollectorRegistry):
    """Shows a histogram without bounds as the sum and the count that it is: its one bucket, of all, says nothing."""

    def collect(self) -> Iterator[Metric]:
        """Return what is served."""
        for family in super().collect():
            if family.type == "histogram" and all(
                sample.labels.get("le", "+Inf") == "+Inf" for sample in family.samples
            ):
                summary = Metric(family.name, family.documentation, "summary")
                summary.samples = [sample for sample in family.samples if "le" not in sample.labels]
                yield summary
            else:
                yield family


class _Page:
    """Makes the page once for all who ask within a moment: each making takes the interpreter from the training thread.

    Args:
        app: the WSGI application that makes it.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._asked: tuple[Any, ...] = ()
        self._made = 0.0
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        """Answer a request."""
        asked = tuple(environ.get(name, "") for name in _ASKED)
        with self._lock:
            if asked != self._asked or time.monotonic() - self._made > _PAGE_SECONDS:
                self._body = list(self._app(environ, self._start_response))
                self._asked, self._made = asked, time.monotonic()
            # A list of its own for each: the server adds to it.
            status, headers, body = self._status, self._headers[:], self._body
        start_response(status, headers)
        return body

    def _start_response(self, status: str, headers: list[tuple[str, str]]) -> None:
        self._status, self._headers = status, headers


class PrometheusReader(PrometheusMetricReader):
    """A Prometheus reader that serves nothing before :func:`serve` is called.

    It has a registry of its own, so no process-wide series come along, and no labels of the instrumentation scope:
    three on every bucket line would make the page several times as long.
    """

    def __init__(self) -> None:
        self.registry = _Registry()
        self._server: Any = None
        super().__init__(registry=self.registry, scope_info_enabled=False)
        _readers[:] = [self]

    def serve(self, local_rank: int) -> int:
        """Open the endpoint, once; return its port, or 0 with a warning where none can be opened."""
        if self._server is not None:
            return self._server.server_port
        host = environment.text(OTEL_EXPORTER_PROMETHEUS_HOST) or "localhost"
        base = environment.whole_number(OTEL_EXPORTER_PROMETHEUS_PORT, PROMETHEUS_PORT, minimum=1, maximum=HIGHEST_PORT)
        first = base + local_rank
        last = first + _PORTS - 1
        reason = f"the highest port is {HIGHEST_PORT}"
        for port in range(first, min(last, HIGHEST_PORT) + 1):
            try:
                self._server, _ = start_http_server(port, addr=host, registry=self.registry)
            except OSError as error:
                reason = str(error.strerror)
                continue
            self._server.set_app(_Page(self._server.get_app()))
            if port != first:
                # The state file has the port; one rank of a host says it for all.
                level = logging.INFO if local_rank else logging.WARNING
                _logger.log(level, "port %d is taken; the metrics of local rank %d are on %d", first, local_rank, port)
            return port
        _logger.warning(
            "no port of %d to %d on %s can be opened (%s); training goes on without an endpoint. Set %s",
            first,
            last,
            host,
            reason,
            OTEL_EXPORTER_PROMETHEUS_PORT,
        )
        return 0

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the endpoint."""
        _readers[:] = [reader for reader in _readers if reader is not self]
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        super().shutdown(timeout_millis, **kwargs)  # pyright: ignore[reportUnknownMemberType] - untyped upstream

    def leave(self) -> None:
        """Close nothing at a shutdown: its thread and its socket end with the process."""
        self._server = None

    def forget_parent(self) -> None:
        """Close the listening socket that a forked child inherited; the parent's stays open."""
        server, self._server = self._server, None
        if server is not None:
            server.socket.close()


#: The reader that OpenTelemetry made in this process, when it made one.
_readers: list[PrometheusReader] = []


def serve(local_rank: int) -> int:
    """Open the endpoint of the reader that OpenTelemetry made, if it made one; return its port, else 0."""
    return _readers[0].serve(local_rank) if _readers else 0


def leave() -> None:
    """Leave the endpoint to the end of the process: to close it takes up to half a second."""
    for reader in _readers:
        reader.leave()


def _after_fork() -> None:
    for reader in _readers:
        reader.forget_parent()


os.register_at_fork(after_in_child=_after_fork)
