"""What the tests of the web server share."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager

import bcrypt

from laggard_exporter.collection import Collection, Collector
from laggard_exporter.web.address import Address
from laggard_exporter.web.application import Application
from laggard_exporter.web.server import Server
from laggard_exporter.web.watch import ConfigurationSource
from tests.exporter.support import TIMEOUT

#: With the lowest cost, so that tests are quick.
SECRET_HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


@contextmanager
def serving(
    host: str = "127.0.0.1",
    *,
    collectors: Iterable[Collector] = (),
    source: ConfigurationSource | None = None,
    max_requests: int = 0,
) -> Generator[Server, None, None]:
    """Serve the collectors on a free port."""
    application = Application(Collection(list(collectors)), "/metrics", max_requests)
    server = Server(Address(host, 0), application, source)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(TIMEOUT)
        server.server_close()
