"""Connections: one thread each, a bounded number of them, and a deadline for everything that a client does."""

from __future__ import annotations

import logging
import re
import socket
import socketserver
import sys
import threading
import time
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from laggard_exporter.logs import LogOnce
from laggard_exporter.web.address import Address, resolve
from laggard_exporter.web.application import Application, Request, Response
from laggard_exporter.web.configuration import WebConfiguration
from laggard_exporter.web.watch import ConfigurationSource

if TYPE_CHECKING:
    import ssl

#: A client has so many seconds for the handshake and its request, however it spreads them.
REQUEST_SECONDS = 10.0

#: And so many to take the answer.
RESPONSE_SECONDS = 30.0

#: Bytes that a request may have.
REQUEST_BYTES = 32 * 1024

#: Header lines that it may have.
MOST_HEADERS = 100

#: What may be asked; the application knows which pages take which.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

#: Bytes that the body of one may have; only what does something has any.
BODY_BYTES = 4096

#: A large answer may take longer: so many bytes a second.
SLOWEST_BYTES = 1 << 20

#: A file is sent in pieces of so many bytes.
CHUNK_BYTES = 1 << 16

#: Connections at the same time, on each address. A further one is closed at once.
CONNECTIONS = 128

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_VERSION = re.compile(r"HTTP/\d+\.\d+")

_logger = logging.getLogger(__name__)


class _RefusedError(Exception):
    """A client sends what is not a request that this server takes; ``status`` says why."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class _Stream:
    """A socket whose every operation ends at the deadline; that of the socket alone begins again with each byte."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.deadline = deadline
        self._connection = connection
        self._received = b""

    def read_head(self) -> bytes:
        """Return what comes before an empty line or the end. Raises :class:`_RefusedError` where it is no request."""
        looked_at = 0
        while not (end := _HEAD_END.search(self._received, looked_at)):
            looked_at = max(0, len(self._received) - 3)
            if not self._receive():
                return self._received
            # Who speaks TLS waits for an answer to its first bytes.
            if not (first := self._received[:1]).isalpha() and not first.isspace():
                raise _RefusedError(HTTPStatus.BAD_REQUEST)
            if len(self._received) > REQUEST_BYTES:
                raise _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        head, self._received = self._received[: end.start()], self._received[end.end() :]
        return head

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        while len(self._received) < size and self._receive():
            pass
        return self._received[:size]

    def write(self, data: bytes) -> None:
        """Send all of it."""
        rest = memoryview(data)
        while rest:
            self._arm()
            rest = rest[self._connection.send(rest) :]

    def _receive(self) -> bool:
        self._arm()
        part = self._connection.recv(REQUEST_BYTES)
        self._received += part
        return bool(part)

    def _arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client takes too long")
        self._connection.settimeout(left)


def _parse(head: bytes, *, closed: bool) -> Request:
    """Return what a client asks for. Raises :class:`_RefusedError`.

    Without :mod:`http.server`: its parser is that of e-mail, and takes 3 MB of memory.
    """
    first, *lines = head.decode("latin-1").split("\n")
    match first.split():
        case [method, target, version] if _VERSION.fullmatch(version):
            pass
        case _:
            raise _RefusedError(HTTPStatus.BAD_REQUEST)
    if not version.startswith("HTTP/1."):
        raise _RefusedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    if method not in METHODS:
        raise _RefusedError(HTTPStatus.NOT_IMPLEMENTED)
    if len(lines) > MOST_HEADERS:
        raise _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and not name[:1].isspace():
            # One that comes several times is a list (RFC 9110, section 5.3).
            name, value = name.title(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Request(method, target, headers, closed=closed)


class _Handler(socketserver.BaseRequestHandler):
    """Answers one request and closes the connection."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride] - the base class knows less

    def setup(self) -> None:
        deadline = time.monotonic() + REQUEST_SECONDS
        # One configuration for the whole connection: a change must not put half of each in force.
        self.web: WebConfiguration = self.server.source.current()
        self.connection = self.request
        if self.web.tls is not None:
            self.connection = self._encrypted(self.web.tls, deadline)
        self._stream = _Stream(self.connection, deadline)

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
            head = self._stream.read_head()
            if not head.strip():
                return
            request = _parse(head, closed=self.web.closed)
            self._send(self._answer(request), with_body=request.method != "HEAD")
        except _RefusedError as refused:
            self._send(Response(refused.status))

    def finish(self) -> None:
        if self.web.tls is not None:
            self.connection.close()

    def _answer(self, request: Request) -> Response:
        headers, application = request.headers, self.server.application
        if not self.web.users.allow(headers.get("Authorization")):
            return Response(HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": 'Basic realm="laggard"'})
        if not self.web.rate.acquire():
            return Response(HTTPStatus.TOO_MANY_REQUESTS)
        if request.method == "POST" and application.action(request) is not None:
            length = headers.get("Content-Length", "0")
            if not (length.isascii() and length.isdecimal()) or int(length) > BODY_BYTES:
                return Response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            request = replace(request, body=self._stream.read(int(length)))
        return application.respond(request)

    def _send(self, response: Response, *, with_body: bool = True) -> None:
        _logger.debug("%s: %d", self.client_address, response.status)
        size = response.size if response.file else len(response.body)
        self._stream.deadline = time.monotonic() + RESPONSE_SECONDS + size / SLOWEST_BYTES
        headers = {
            "Server": "laggard-exporter",
            "Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
            **response.headers,
            **self.web.headers,
            "Content-Length": str(size),
        }
        lines = [f"HTTP/1.0 {response.status} {response.status.phrase}"]
        lines += (f"{name}: {value}" for name, value in headers.items())
        head = "\r\n".join((*lines, "", "")).encode("latin-1", "replace")
        self._stream.write(head + response.body if with_body else head)
        if response.file:
            with response.file as file:
                while with_body and (part := file.read(CHUNK_BYTES)):
                    self._stream.write(part)


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
