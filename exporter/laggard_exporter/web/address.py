"""Where to listen."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

from laggard.shared.environment import HIGHEST_PORT

#: The node exporter's, unless it is told another.
PORT = 9495


class Address(NamedTuple):
    """Where to listen. An empty host is every address of the node; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> Address:
    """Return the address that ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT`` means.

    Raises :class:`ValueError` for anything else.
    """
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        separator = ""
    if not separator or not (port.isascii() and port.isdecimal()) or int(port) > HIGHEST_PORT:
        raise ValueError(f"must be HOST:PORT, got {text!r}; try localhost:9495, :9495 or [::1]:9495")
    return Address(host, int(port))


def resolve(address: Address) -> tuple[socket.AddressFamily, str]:
    """Return protocol and numeric host. Raises :class:`OSError` for a name that nobody knows."""
    if not address.host:
        return (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")  # noqa: S104 - asked for
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    # IPv4 first, as node_exporter does for localhost: who scrapes 127.0.0.1 must find us.
    family, _, _, _, target = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, str(target[0])
