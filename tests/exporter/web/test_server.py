"""Where the server listens, and what clients cannot do to it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from laggard_exporter.samples import Family, Sample
from laggard_exporter.web import server as server_module
from laggard_exporter.web.address import Address
from laggard_exporter.web.server import Server
from tests.exporter.support import TIMEOUT
from tests.exporter.web.support import serving


def healthy(host: str, port: int) -> bool:
    """Return whether the server answers at this address."""
    with urllib.request.urlopen(f"http://{Address(host, port)}/-/healthy", timeout=TIMEOUT) as response:
        return response.status == 200


def exchange(server: Server, data: bytes) -> bytes:
    """Send bytes as they are and return what comes back until the server closes the connection."""
    with socket.create_connection(server.address, TIMEOUT) as client:
        # A server that closes while it is still sent to resets the connection.
        with contextlib.suppress(OSError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := client.recv(65536):
                answer += part
        return answer


def test_a_name_means_ipv4_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a name has addresses of both protocols, the server listens on that of IPv4."""
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]

    def resolve(*_: object, **__: object) -> list[object]:
        return [*both]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", resolve)
        with serving("localhost") as server:
            assert server.url == f"http://127.0.0.1:{server.address.port}"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_every_address() -> None:
    """Without a host the server answers on both protocols; with an IPv6 address on that alone."""
    with serving("") as server:
        assert healthy("127.0.0.1", server.address.port)
        assert healthy("::1", server.address.port)
    with serving("::1") as server:
        assert server.url == f"http://[::1]:{server.address.port}"
        assert healthy("::1", server.address.port)
        with pytest.raises(OSError, match="refused"):
            healthy("127.0.0.1", server.address.port)


def test_a_client_that_breaks_off(capfd: pytest.CaptureFixture[str]) -> None:
    """A connection that is reset in the middle of a request writes nothing to the console and harms nobody."""
    with serving() as server:
        with socket.create_connection(server.address, TIMEOUT) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHos")
            # With no time to linger closing is a reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert healthy("127.0.0.1", server.address.port)
    assert capfd.readouterr().err == ""


def test_a_client_that_asks_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has one deadline, however often a byte of it comes."""
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.3)
    with serving() as server, socket.create_connection(server.address, TIMEOUT) as client:
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - started < 5:
                client.sendall(b"X")
                client.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    if not client.recv(1):
                        break
        assert 0.3 <= time.monotonic() - started < 3


class Large:
    """A collector with more to say than any socket takes at once."""

    name = "large"

    def collect(self) -> Iterator[Sample]:
        family = Family("large", "gauge", "Much.", ("name",))
        for number in range(20_000):
            yield Sample(family, (f"{number:0500}",), 1)


def test_a_client_that_reads_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not take its answer is cut off, and its place is free again."""
    monkeypatch.setattr(server_module, "RESPONSE_SECONDS", 0.3)
    monkeypatch.setattr(server_module, "CONNECTIONS", 1)
    with serving(collectors=[Large()]) as server:
        with socket.create_connection(server.address, TIMEOUT) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert _until_free(server)
            received = 0
            with contextlib.suppress(ConnectionError):
                while part := client.recv(1 << 20):
                    received += len(part)
        # What the kernel holds for it, not all.
        assert 0 < received < 20_000 * 500
        assert healthy("127.0.0.1", server.address.port)


def _until_free(server: Server) -> bool:
    time.sleep(0.1)
    if free := server._slots.acquire(timeout=TIMEOUT):
        server._slots.release()
    return free


def test_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond their number connections are closed at once; when one ends there is room again."""
    monkeypatch.setattr(server_module, "CONNECTIONS", 4)
    with serving() as server:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(socket.create_connection(server.address, TIMEOUT))
            assert exchange(server, b"GET /-/healthy HTTP/1.0\r\n\r\n") == b""
        assert _until_free(server)
        assert healthy("127.0.0.1", server.address.port)


def test_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In a full process table connections are closed, with one line in the log, and served again when there is room."""
    request = b"GET /-/healthy HTTP/1.0\r\n\r\n"
    with serving() as server:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(server_module.CONNECTIONS + 2):
                assert exchange(server, request) == b""
        assert healthy("127.0.0.1", server.address.port)
    assert [record.getMessage() for record in caplog.records] == [
        "a connection was closed unanswered: can't start new thread"
    ]


GARBAGE = {
    "nothing": (b"", b""),
    "no request": (b"\r\n\r\n", b""),
    "one word": (b"hello\r\n\r\n", b" 400 "),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n", b" 400 "),
    "another version": (b"GET / HTTP/9.9\r\n\r\n", b" 505 "),
    "no version": (b"GET / HTTP/x.y\r\n\r\n", b" 400 "),
    "another method": (b"BREW / HTTP/1.0\r\n\r\n", b" 501 "),
    "control characters": (b"GET /\x00\x1b[2J HTTP/1.0\r\n\r\n", b" 404 "),
    "no header": (b"GET / HTTP/1.0\r\nno colon here\r\n\r\n", b" 200 "),
    "a body": (b"POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", b" 405 "),
    "a long target": (b"GET /" + b"a" * 40_000 + b" HTTP/1.0\r\n\r\n", b" 431 "),
    "a long header": (b"GET / HTTP/1.0\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", b" 431 "),
    "endless headers": (b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 10_000 + b"\r\n", b" 431 "),
    "many headers": (b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 200 + b"\r\n", b" 431 "),
    "many fields": (b"GET /metrics?" + b"a&" * 1000 + b" HTTP/1.0\r\n\r\n", b" 400 "),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What is no request gets the status that says so, without a word on the console, and the next client is served."""
    data, status = GARBAGE[name]
    with serving() as server:
        answer = exchange(server, data)
        # A client that still sends when the answer comes may lose it to the reset.
        assert (status in answer.partition(b"\r\n")[0]) or (not answer and len(data) > 30_000)
        assert b"Python" not in answer
        assert healthy("127.0.0.1", server.address.port)
    assert capfd.readouterr().err == ""


def test_who_speaks_tls_is_answered_at_once() -> None:
    """A client that waits for an answer to its first bytes, and sends no more, learns that they are no request."""
    with serving() as server, socket.create_connection(server.address, TIMEOUT) as client:
        client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200))
        client.settimeout(server_module.REQUEST_SECONDS / 2)
        assert client.recv(65536).startswith(b"HTTP/1.0 400 ")


def test_a_header_that_comes_twice() -> None:
    """Lines of one header are a list, and a line that goes on with the one before is left out."""
    request = b"GET /metrics HTTP/1.1\r\nAccept-Encoding: gzip\r\naccept-encoding: br\r\n{}\r\n"
    with serving() as server:
        for folded in (b"", b" Accept-Encoding: gzip;q=0\r\n"):
            assert b"\r\nContent-Encoding: gzip\r\n" in exchange(server, request.replace(b"{}", folded))


def test_random_bytes(capfd: pytest.CaptureFixture[str]) -> None:
    """Random bytes of many lengths harm nobody."""
    with serving() as server:
        for size in (1, 10, 100, 1000, 10_000, 100_000):
            for _ in range(5):
                exchange(server, b"GET " * (size % 2) + os.urandom(size) + b"\r\n\r\n")
        assert healthy("127.0.0.1", server.address.port)
    assert capfd.readouterr().err == ""


def test_the_number_of_scrapes() -> None:
    """Scrapes beyond --web.max-requests get 503 at once, and are answered again when there is room."""
    entered, release = threading.Event(), threading.Event()

    class Waiting:
        name = "waiting"

        def collect(self) -> Iterator[Sample]:
            entered.set()
            assert release.wait(TIMEOUT)
            yield from ()

    request = b"GET /metrics HTTP/1.0\r\n\r\n"
    with serving(collectors=[Waiting()], max_requests=1) as server:
        first: list[bytes] = []
        thread = threading.Thread(target=lambda: first.append(exchange(server, request)))
        thread.start()
        assert entered.wait(TIMEOUT)
        refused = exchange(server, request)
        assert b" 503 " in refused.partition(b"\r\n")[0]
        assert refused.endswith(b"1 scrapes run already (--web.max-requests)\n")
        assert healthy("127.0.0.1", server.address.port)
        release.set()
        thread.join(TIMEOUT)
        for answer in (first[0], exchange(server, request)):
            assert b" 200 " in answer.partition(b"\r\n")[0]
