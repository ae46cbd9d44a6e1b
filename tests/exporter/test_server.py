"""Where the server listens, and what clients can not do to it."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from laggard_exporter.server import Address, Server, make_application
from tests.exporter.support import TIMEOUT


@contextmanager
def serving(host: str) -> Generator[Server, None, None]:
    """Serve nothing on a free port."""
    server = Server(Address(host, 0), make_application(CollectorRegistry(), "/metrics"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(TIMEOUT)
        server.server_close()


def healthy(host: str, port: int) -> bool:
    """Return whether the server answers at this address."""
    with urllib.request.urlopen(f"http://{Address(host, port)}/-/healthy", timeout=TIMEOUT) as response:
        return response.status == 200


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
            assert server.url == f"http://127.0.0.1:{server.server_port}"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_every_address() -> None:
    """Without a host the server answers on both protocols; with an IPv6 address on that alone."""
    with serving("") as server:
        assert healthy("127.0.0.1", server.server_port)
        assert healthy("::1", server.server_port)
    with serving("::1") as server:
        assert server.url == f"http://[::1]:{server.server_port}"
        assert healthy("::1", server.server_port)
        with pytest.raises(OSError, match="refused"):
            healthy("127.0.0.1", server.server_port)


def test_a_client_that_breaks_off(capfd: pytest.CaptureFixture[str]) -> None:
    """A connection that is reset in the middle of a request writes nothing to the console and harms nobody."""
    with serving("127.0.0.1") as server:
        with socket.create_connection(("127.0.0.1", server.server_port), TIMEOUT) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHos")
            # With no time to linger closing is a reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert healthy("127.0.0.1", server.server_port)
    assert capfd.readouterr().err == ""
