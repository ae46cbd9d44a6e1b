"""Free ports on loopback."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from laggard_cli.errors import CommandError

#: First and last port of outgoing connections, of which a job with process groups makes many.
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return consecutive ports that are free now, and that the kernel gives to no outgoing connection meanwhile.

    Raises:
        CommandError: there are not as many in a row.
    """
    first_outgoing = int(_OUTGOING_PORTS.read_text().split()[0])
    for _ in range(100):
        first = random.randrange(first_outgoing // 2, first_outgoing - count)  # noqa: S311 - a port is no secret
        ports = range(first, first + count)
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in ports:
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            return list(ports)
    raise CommandError(f"no {count} consecutive free ports on 127.0.0.1")
