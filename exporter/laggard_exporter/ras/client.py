"""Asks the RAS service of a job on this host: within limits of time and size, and at no address but of this host.

Each process of a job listens on the same port, so each connection reaches another one, and one that is stopped never
answers. Another job of the same user may listen there too; who is asked says whom the answer is of.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from laggard_exporter.ras.answer import MAX_BYTES, RasError

PORT = 28028
ADDRESS_VARIABLE = "NCCL_RAS_ADDR"

#: RAS gives up other processes after this time, in seconds, and answers at the latest after it and five more.
COLLECT_SECONDS = 3
#: Who does not greet within this time, in seconds, is stopped or no RAS service.
GREET_SECONDS = 2.0
#: A question ends after this time, in seconds. Longer than RAS takes at most: it has work with who hangs up before.
QUESTION_SECONDS = 12.0
#: Connections, each to another process.
ATTEMPTS = 4

_MAX_LINE = 256
_MAX_ENVIRONMENT = 1 << 20
_LISTENS = "0A"


class NobodyError(RasError):
    """No process of the user listens on the port."""


class Listener(NamedTuple):
    """An address of this host on which somebody listens."""

    family: socket.AddressFamily
    host: str
    port: int


def port(environment: bytes) -> int:
    """Return the port of the RAS service, as the environment of a process says; NCCL's own where it does not.

    The host beside it is left out: who listens where is asked of the kernel.
    """
    for entry in environment[:_MAX_ENVIRONMENT].split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == ADDRESS_VARIABLE.encode():
            number = value.rpartition(b":")[2].partition(b"%")[0]
            return int(number) if number.isdigit() and 0 < int(number) < 1 << 16 else PORT
    return PORT


def listeners(procfs: Path, port: int, user: int) -> list[Listener]:
    """Return where processes of a user listen on a port, as the kernel says, each address once."""
    found: dict[Listener, None] = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for address, number, owner in _listening(procfs / "self" / "net" / name):
            if number == port and owner == user:
                # On all addresses is on the loopback one too.
                anywhere = not any(address)
                loopback = "127.0.0.1" if family == socket.AF_INET else "::1"
                found[Listener(family, loopback if anywhere else socket.inet_ntop(family, address), port)] = None
    return list(found)


def _listening(table: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yield address, port and user of each socket that listens. The kernel lists these before all others."""
    try:
        with table.open(encoding="ascii", errors="replace") as lines:
            next(lines, None)
            for line in lines:
                fields = line.split()
                if fields[3] != _LISTENS:
                    return
                host, _, number = fields[1].partition(":")
                words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
                yield struct.pack(f"={len(words)}I", *words), int(number, 16), int(fields[7])
    except (OSError, ValueError, IndexError):
        return


def is_here(host: str) -> bool:
    """Return whether an address is one of this host."""
    try:
        address = ipaddress.ip_address(host)
        family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return not address.is_unspecified


def ask(procfs: Path, port: int, user: int) -> bytes:
    """Return the answer of a RAS service of a user's job on this host.

    Raises:
        NobodyError: nobody listens.
        RasError: nobody answers in time, or with what RAS says.
    """
    until = time.monotonic() + QUESTION_SECONDS
    known = listeners(procfs, port, user)
    if not known:
        raise NobodyError(f"no process of user {user} listens on port {port}")
    why = ""
    for attempt in range(ATTEMPTS):
        if time.monotonic() + GREET_SECONDS > until:
            break
        listener = known[attempt % len(known)]
        try:
            with socket.socket(listener.family, socket.SOCK_STREAM) as connection:
                connection.settimeout(GREET_SECONDS)
                connection.connect((listener.host, listener.port))
                _greet(connection)
                return _status(connection, until)
        except OSError as error:
            why = f"{listener.host} port {port}: {error.strerror or error}"
    raise RasError(why)


def _greet(connection: socket.socket) -> None:
    # Version 2 of the protocol; NCCL goes on with any.
    connection.sendall(f"CLIENT PROTOCOL 2\nTIMEOUT {COLLECT_SECONDS}\nSET FORMAT json\n".encode())
    lines = connection.makefile("rb", buffering=0)
    for wanted in (b"SERVER PROTOCOL ", b"OK\n", b"OK\n"):
        line = lines.readline(_MAX_LINE)
        if not line:
            raise OSError("the connection was closed")
        if not line.startswith(wanted):
            old = "; NCCL writes JSON since 2.28.7" if wanted == b"OK\n" else ""
            raise RasError(f"RAS answered {line.decode('utf-8', 'replace').strip()!a}{old}")


def _status(connection: socket.socket, until: float) -> bytes:
    connection.sendall(b"STATUS\n")
    parts: list[bytes] = []
    size = 0
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise RasError(f"RAS did not end its answer within {QUESTION_SECONDS:.0f} s")
        connection.settimeout(left)
        try:
            part = connection.recv(1 << 16)
        except TimeoutError:
            continue
        if not part:
            return b"".join(parts)
        size += len(part)
        if size > MAX_BYTES:
            raise RasError(f"RAS answered with more than the {MAX_BYTES} bytes that are read")
        parts.append(part)
