"""Ports of loopback."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
