"""Serves the metrics over HTTP: one thread per request, one server per address."""

from __future__ import annotations

import gzip
import html
import logging
import socket
import socketserver
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from laggard.version import __version__

#: A client that neither asks nor reads for so many seconds is cut off.
CLIENT_TIMEOUT = 30

_HIGHEST_PORT = 65535

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><title>laggard-exporter</title></head>
<body><h1>laggard-exporter {version}</h1>
<p>A node's GPUs and training ranks for Prometheus.</p>
<ul><li><a href="{path}">Metrics</a></li><li><a href="/-/healthy">Health</a></li></ul>
</body></html>
"""

_logger = logging.getLogger(__name__)

#: What a server asks for each request (PEP 3333).
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Address(NamedTuple):
    """Where to listen. An empty host is every address of the node; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT`` means.

    Raises :class:`ValueError` for anything else.
    """
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        separator = ""
    if not separator or not (port.isascii() and port.isdecimal()) or int(port) > _HIGHEST_PORT:
        raise ValueError(f"{text!r} is no HOST:PORT; examples: localhost:9495, :9495, [::1]:9495")
    return Address(host, int(port))


def make_application(collector: Collector, telemetry_path: str) -> Application:
    """Return the WSGI application that serves what ``collector`` yields at ``telemetry_path``."""
    page = _PAGE.format(version=html.escape(__version__), path=html.escape(telemetry_path))
    texts = {"/": ("text/html; charset=utf-8", page), "/-/healthy": ("text/plain", "laggard-exporter is healthy.\n")}

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if method not in {"GET", "HEAD"}:
            status, headers, body = "405 Method Not Allowed", {"Allow": "GET, HEAD"}, b""
        elif path == telemetry_path:
            status, (headers, body) = "200 OK", _metrics(collector, environ)
        else:
            status = "200 OK" if path in texts else "404 Not Found"
            content_type, text = texts.get(path, ("text/plain", f"nothing here; metrics are at {telemetry_path}\n"))
            headers, body = {"Content-Type": content_type}, text.encode()
        start_response(status, list(headers.items()))
        return [] if method == "HEAD" else [body]

    return application


def _metrics(collector: Collector, environ: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    # No registry: nothing is served but what the collector yields, nothing about the Python process.
    encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
    headers, body = {"Content-Type": content_type}, encode(collector)
    if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
        # The default level takes several times as long and saves little: the text is repetitive.
        headers["Content-Encoding"], body = "gzip", gzip.compress(body, 1)
    return headers, body


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        _logger.debug("%s %s", self.address_string(), format % args)


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """Listens on one address from construction on. Raises :class:`OSError` when it can not."""

    # A request that hangs in a driver must not keep the process from ending.
    daemon_threads = True

    def __init__(self, address: Address, application: Application) -> None:
        family, host = _resolve(address)
        self.address_family = family
        super().__init__((host, address.port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's full name that the base class does: it may take very long."""
        if self.address_family == socket.AF_INET6:
            # On any system ``::`` means every address, those of IPv4 included.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        host, port = self.socket.getsockname()[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Log what a client did to its connection where it disturbs nobody; the base class prints a traceback."""
        _logger.debug("request from %s: %r", client_address, sys.exc_info()[1])

    @property
    def url(self) -> str:
        """Where the server can be reached, with the port that it really has."""
        return f"http://{Address(self.server_name, self.server_port)}"


def _resolve(address: Address) -> tuple[socket.AddressFamily, str]:
    if not address.host:
        return (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")  # noqa: S104 - asked for
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    # IPv4 first, as node_exporter does for localhost: who scrapes 127.0.0.1 must find us.
    family, _, _, _, target = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, str(target[0])
