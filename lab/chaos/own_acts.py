"""What is done to laggard while a job runs. ``ACTS`` has each by its name."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from lab.chaos.stack import Stack

#: Ranks of the job.
WORLD = 2
_GARBAGE_BYTES = 10_000_000
_STORM_CLIENTS = 50
_STORM_SECONDS = 5.0


@dataclass
class Scene:
    """A job that runs while laggard breaks."""

    stack: Stack
    folder: Path
    ports: Sequence[int]
    state: Path

    @property
    def served(self) -> list[int]:
        """Ports at which laggard answers: the ranks' metrics and the node exporter's."""
        exporter = int(self.stack.servers.addresses["exporter"].rpartition(":")[2])
        return [*self.ports[1 : 1 + WORLD], exporter]


#: Gives the job's environment; breaks something while it runs; when it has ended, raises where something is lost that
#: must not be. Closed, it cleans up behind itself.
Act = Callable[[Scene], Generator[dict[str, str], None, None]]


def _nothing(_: Scene) -> Generator[dict[str, str], None, None]:
    yield {}
    yield {}


def killed(server: str, seconds: float = 5.0) -> Act:
    """Return the act that kills a server, and starts it again after so long."""

    def act(scene: Scene) -> Generator[dict[str, str], None, None]:
        yield {}
        scene.stack.servers.kill(server)
        scene.stack.pause(seconds)
        scene.stack.servers.start(server)
        yield {}

    return act


def _endpoint_never_answers(_: Scene) -> Generator[dict[str, str], None, None]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield endpoint(server.getsockname()[1])
        yield {}


def _endpoint_unreachable(_: Scene) -> Generator[dict[str, str], None, None]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield endpoint(port)
    yield {}


def endpoint(port: int) -> dict[str, str]:
    """Return what has ranks send all to a port."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    }


def _disk_full(scene: Scene) -> Generator[dict[str, str], None, None]:
    disk = scene.folder.with_name(f"{scene.folder.name}-disk")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "laggard-chaos", disk], check=True)
    try:
        with contextlib.suppress(OSError):
            (disk / "full").write_bytes(bytes(2**20))
        yield {"LAGGARD_STATE_DIR": str(disk)}
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", disk], check=False)


def _disk_fills(scene: Scene) -> Generator[dict[str, str], None, None]:
    disk = scene.folder.with_name(f"{scene.folder.name}-disk")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "laggard-chaos", disk], check=True)
    try:
        yield {"LAGGARD_STATE_DIR": str(disk)}
        with contextlib.suppress(OSError):
            (disk / "full").write_bytes(bytes(2**20))
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", disk], check=False)


def _state_removed(scene: Scene) -> Generator[dict[str, str], None, None]:
    folder = scene.folder.with_name(f"{scene.folder.name}-state")
    yield {"LAGGARD_STATE_DIR": str(folder)}
    shutil.rmtree(folder)
    yield {}


def _state_impossible(_: Scene) -> Generator[dict[str, str], None, None]:
    yield {"LAGGARD_STATE_DIR": "/proc/laggard"}
    yield {}


def _ports_taken(scene: Scene) -> Generator[dict[str, str], None, None]:
    with contextlib.ExitStack() as sockets:
        for port in scene.ports[1:]:
            sockets.enter_context(socket.create_server(("127.0.0.1", port)))
        yield {}
        yield {}


def _storm(scene: Scene) -> Generator[dict[str, str], None, None]:
    def ask(port: int) -> None:
        with httpx.Client(timeout=10) as client:
            while time.monotonic() < ends:
                with contextlib.suppress(httpx.HTTPError):
                    client.get(f"http://127.0.0.1:{port}/metrics")

    yield {}
    ends = time.monotonic() + _STORM_SECONDS
    ports = scene.served
    _together([lambda port=port: ask(port) for port in ports for _ in range(_STORM_CLIENTS // len(ports))])
    yield {}


def _garbage(scene: Scene) -> Generator[dict[str, str], None, None]:
    def send(port: int) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(garbage)

    yield {}
    garbage = secrets.token_bytes(_GARBAGE_BYTES)
    _together([lambda port=port: send(port) for port in scene.served])
    yield {}


def _together(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


ACTS: dict[str, Act] = {
    "nothing": _nothing,
    "prometheus": killed("prometheus"),
    "exporter": killed("exporter"),
    "endpoint-never-answers": _endpoint_never_answers,
    "endpoint-unreachable": _endpoint_unreachable,
    "disk-full": _disk_full,
    "disk-fills": _disk_fills,
    "state-removed": _state_removed,
    "state-impossible": _state_impossible,
    "ports-taken": _ports_taken,
    "storm": _storm,
    "garbage": _garbage,
}
