"""Connections: one thread each, a bounded number of them, and a deadline for everything that a client does."""

from __future__ import annotations

import io
import logging
import shutil
import socket
import socketserver
import ssl
import sys
import threading
import time
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from laggard_exporter.logs import LogOnce
from laggard_exporter.web.address import Address, resolve
from laggard_exporter.web.application import Application, Request, Response
from laggard_exporter.web.configuration import WebConfiguration
from laggard_exporter.web.watch import ConfigurationSource

#: A client has so many seconds for the handshake and its request, however it spreads them.
REQUEST_SECONDS = 10.0

#: And so many to take the answer.
RESPONSE_SECONDS = 30.0

#: Bytes that a request may have.
REQUEST_BYTES = 32 * 1024

#: Bytes that the body of one may have; only what does something has any.
BODY_BYTES = 4096

#: A large answer may take longer: so many bytes a second.
SLOWEST_BYTES = 1 << 20

#: A file is sent in pieces of so many bytes.
CHUNK_BYTES = 1 << 16

#: Connections at the same time, on each address. A further one is closed at once.
CONNECTIONS = 128

_logger = logging.getLogger(__name__)


class _TooLongError(Exception):
    """The client sends more than a request may have."""


class _Stream(io.RawIOBase):
    """A socket whose every operation ends at the deadline; a timeout of the socket alone starts anew with each byte."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.deadline = deadline
        self._connection = connection
        self._left = REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._arm()
        count = self._connection.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise _TooLongError
        return count

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        while rest:
            self._arm()
            rest = rest[self._connection.send(rest) :]
        return len(data)

    def _arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client takes too long")
        self._connection.settimeout(left)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request and closes the connection."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride] - the base class knows less
    # What is set here stands until a request was parsed, for answers to what is none.
    command = ""
    request_version = "HTTP/1.0"
    requestline = ""
    close_connection = True

    def setup(self) -> None:
        deadline = time.monotonic() + REQUEST_SECONDS
        self.web = self.server.source.current()
        self.connection = self.request
        if self.web.tls is not None:
            self.connection = self._encrypted(self.web.tls, deadline)
        self._stream = _Stream(self.connection, deadline)
        self.rfile = io.BufferedReader(self._stream, 4096)
        self.wfile = self._stream  # pyright: ignore[reportAttributeAccessIssue] - all that is asked of it is write

    def _encrypted(self, tls: ssl.SSLContext, deadline: float) -> ssl.SSLSocket:
        self.request.settimeout(deadline - time.monotonic())
        connection = tls.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
        try:
            connection.do_handshake()
            self.web.check(connection.getpeercert())
        except BaseException:
            connection.close()
            raise
        return connection

    def handle(self) -> None:
        try:
            self.handle_one_request()
        except _TooLongError:
            self._send(Response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def finish(self) -> None:
        self.rfile.close()
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.close()

    def do_GET(self) -> None:
        """Answer, whatever the method: the application knows which it takes."""
        headers = {name.title(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, closed=self.web.closed)
        application = self.server.application
        if not self.web.users.allow(request.headers.get("Authorization")):
            self._send(Response(HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": 'Basic realm="laggard"'}))
        elif not self.web.rate.acquire():
            self._send(Response(HTTPStatus.TOO_MANY_REQUESTS))
        elif request.method == "POST" and application.action(request) is not None:
            length = headers.get("Content-Length", "0")
            if not (length.isascii() and length.isdecimal()) or int(length) > BODY_BYTES:
                self._send(Response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE))
            else:
                self._send(application.respond(replace(request, body=self.rfile.read(int(length)))))
        else:
            self._send(application.respond(request))

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET  # noqa: N815 - as the base class looks for them

    def _send(self, response: Response) -> None:
        size = response.size if response.file else len(response.body)
        self._stream.deadline = time.monotonic() + RESPONSE_SECONDS + size / SLOWEST_BYTES
        headers = {**response.headers, **self.web.headers, "Content-Length": str(size)}
        with response.file or io.BytesIO(response.body) as body:
            self.send_response(response.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                shutil.copyfileobj(body, self.wfile, CHUNK_BYTES)

    def version_string(self) -> str:
        """Name the program, not the release of Python."""
        return "laggard-exporter"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        _logger.debug("%s %s", self.address_string(), format % args)


class Server(socketserver.ThreadingTCPServer):
    """Listens on one address from construction on. Raises :class:`OSError` when it cannot."""

    allow_reuse_address = True
    request_queue_size = 128
    # A request that hangs in a driver must not keep the process from ending.
    daemon_threads = True

    def __init__(self, address: Address, application: Application, source: ConfigurationSource | None = None) -> None:
        self.application = application
        self.source = source or ConfigurationSource(WebConfiguration())
        self._log = LogOnce(_logger)
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        self.address_family, host = resolve(address)
        super().__init__((host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind. On any system ``::`` means every address, those of IPv4 included."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or not at all where there are too many."""
        if not self._slots.acquire(blocking=False):
            _logger.debug("connection from %s closed: there are %d already", client_address, CONNECTIONS)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # a full process table
            self._slots.release()
            self._log(logging.WARNING, f"a connection was closed unanswered: {error}")
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer and make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Log what a client did to its connection where it disturbs nobody; the base class prints a traceback."""
        _logger.debug("request from %s: %r", client_address, sys.exc_info()[1])

    @property
    def address(self) -> Address:
        """Where the server listens, with the port that it really has."""
        host, port = self.server_address[:2]
        return Address(str(host), int(port))

    @property
    def url(self) -> str:
        """Where the server can be reached."""
        return f"{'https' if self.source.current().tls else 'http'}://{self.address}"
