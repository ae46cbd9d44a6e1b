"""Where the ranks of this node serve their metrics.

A state file names a port, and anybody may write one. So a port counts only where a socket listens on it that belongs to
the owner of the file: nobody can point the exporter at a service of somebody else.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from laggard.shared.statefile import Facts
from laggard_exporter.ranks import processes
from laggard_exporter.ranks.files import RankFiles

_LISTENING = "0A"


class Endpoint(NamedTuple):
    """Where a live rank serves its metrics."""

    facts: Facts
    address: str
    """Numeric, to connect to from this node; empty where nothing of the rank's user listens on its port."""
    local: bool
    """Whether nobody but this node can connect."""
    stopped: bool
    """Whether the process is stopped, so that it cannot answer."""


class Endpoints:
    """The endpoints of the live ranks whose state files lie in ``directory``."""

    def __init__(self, directory: Path, procfs: Path, sysfs: Path) -> None:
        self._directory = directory
        self._procfs = procfs
        self._sysfs = sysfs

    def find(self) -> list[Endpoint]:
        """Return the endpoint of each live rank that serves any, by run and rank.

        Raises :class:`OSError` for a folder that cannot be listed; a missing one is empty.
        """
        serving = [
            rank for rank in RankFiles(self._directory).newest() if rank.file.alive and rank.file.facts.metrics_port
        ]
        sockets = listeners(self._procfs) if serving else {}
        found: list[Endpoint] = []
        for rank in sorted(serving, key=lambda rank: (rank.file.facts.run, rank.file.facts.rank)):
            address = sockets.get((rank.file.facts.metrics_port, rank.user), "")
            stopped = bool(processes.stopped(self._procfs, self._sysfs, rank.file.holder_pid))
            local = not address or ipaddress.ip_address(address).is_loopback
            found.append(Endpoint(rank.file.facts, _REACHABLE.get(address, address), local, stopped))
        return found


#: Who listens on every address of the node is asked on loopback.
_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


def listeners(procfs: Path) -> dict[tuple[int, int], str]:
    """Return the numeric address of each TCP socket that listens, by its port and the user that owns it.

    Of several with the same port and user the one on loopback counts.
    """
    found: dict[tuple[int, int], str] = {}
    for name in ("tcp6", "tcp"):
        try:
            with (procfs / "net" / name).open(encoding="ascii") as table:
                next(table, None)
                for line in table:
                    fields = line.split()
                    # The kernel lists those that listen first; a busy node has very many others.
                    if fields[3] != _LISTENING:
                        break
                    address, _, port = fields[1].partition(":")
                    key = (int(port, 16), int(fields[7]))
                    numeric = _numeric(address)
                    if key not in found or not ipaddress.ip_address(found[key]).is_loopback:
                        found[key] = numeric
        except (OSError, IndexError, ValueError):
            # No such protocol here, or no such table.
            continue
    return found


def _numeric(text: str) -> str:
    """Return the address that the kernel writes as words of its own byte order."""
    packed = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(packed) == struct.calcsize("=I") else socket.AF_INET6, packed)
