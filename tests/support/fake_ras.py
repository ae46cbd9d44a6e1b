"""A RAS service that speaks NCCL's protocol, and answers in the JSON that NCCL writes (src/ras/client_support.cc)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
#: Where :func:`process` says that the processes of hosts beyond the first are: addresses for documentation.
ELSEWHERE = "192.0.2"
OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def process(rank: int, *, per_host: int = 8, pid: int = 4000) -> dict[str, Any]:
    """Return where the process of a rank is: the first host is this one."""
    host = rank // per_host
    address = HOST if host == 0 else f"{ELSEWHERE}.{host}"
    gpu = rank % per_host
    return {"host": address, "pid": pid + rank, "cuda_dev": 0, "nvml_dev": gpu}


def member(number: int, rank: int, issued: int | Mapping[str, int] = 0, **status: Any) -> dict[str, Any]:
    """Return a member that answers: its number in the communicator, its rank in the job, what it has issued."""
    counts = {"AllReduce": issued} if isinstance(issued, int) else issued
    flags = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": number,
        **process(rank),
        "status": {**flags, **status},
        "collective_counts": {name: counts.get(name, 0) for name in OPERATIONS},
    }


def missing(number: int, rank: int, *, unresponsive: bool = True, dead: bool = False) -> dict[str, Any]:
    """Return a member that does not answer."""
    return {"rank": number, **process(rank), "status": {"unresponsive": unresponsive, "considered_dead": dead}}


def communicator(
    name: int, members: Sequence[Mapping[str, Any]], away: Sequence[Mapping[str, Any]] = (), size: int | None = None
) -> dict[str, Any]:
    """Return a communicator."""
    return {
        "hash": f"0x{name:x}",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(members) + len(away) if size is None else size,
        "ranks_count": len(members),
        "missing_ranks_count": len(away),
        "ranks": list(members),
        "missing_ranks": list(away),
    }


def world(counts: Sequence[int], away: Mapping[int, bool] | None = None, name: int = 0xF00D) -> dict[str, Any]:
    """Return the communicator over all ranks: what each has issued, and who is away and maybe dead."""
    gone = away or {}
    there = [member(rank, rank, count) for rank, count in enumerate(counts) if rank not in gone]
    return communicator(name, there, [missing(rank, rank, dead=dead) for rank, dead in gone.items()])


def answer(*communicators: Mapping[str, Any], version: str = "2.29.2", comma: bool = True) -> bytes:
    """Return an answer as NCCL writes it; without ``comma`` as 2.28 does."""
    document = {
        "nccl_version": version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-03-01 13:06:53",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
    }
    text = json.dumps(document, indent=2)
    if not comma:
        before, _, after = text.partition('"missing_ranks"')
        at = after.index('"nvml_dev"')
        text = before + '"missing_ranks"' + after[:at] + after[at:].replace(",", "", 1)
    return text.encode() + b"\n"


@dataclass
class FakeRas:
    """The service. What is set here holds for the next connection."""

    port: int
    answer: bytes = b""
    #: It stops answering after so many bytes of an answer, and closes.
    cut: int | None = None
    #: Seconds until it answers.
    delay: float = 0.0
    #: NCCL before 2.28.7, which knows no format.
    old: bool = False
    #: It writes the answer again and again.
    endless: bool = False
    commands: list[str] = field(default_factory=list[str])
    closed: threading.Event = field(default_factory=threading.Event)

    def serve(self, connection: socket.socket) -> None:
        """Answer one client, as NCCL does: until it has asked for the status."""
        with connection, contextlib.suppress(OSError):
            for line in connection.makefile("rb"):
                command = line.decode().strip()
                self.commands.append(command)
                if command.upper() == "STATUS":
                    self._status(connection)
                    return
                connection.sendall(self._reply(command))

    def _reply(self, command: str) -> bytes:
        upper = command.upper()
        if upper.startswith("CLIENT PROTOCOL "):
            return b"SERVER PROTOCOL 2\n"
        if upper.startswith("TIMEOUT ") and command.rpartition(" ")[2].isdigit():
            return b"OK\n"
        if upper in {"SET FORMAT JSON", "SET FORMAT TEXT"} and not self.old:
            return b"OK\n"
        return f"ERROR: Unknown command {command}\n".encode()

    def _status(self, connection: socket.socket) -> None:
        self.closed.wait(self.delay)
        connection.sendall(self.answer[: self.cut])
        while self.endless and not self.closed.is_set():
            connection.sendall(self.answer)


@contextlib.contextmanager
def listening(port: int = 0) -> Generator[socket.socket, None, None]:
    """Listen as a process of a job does, beside the others: who never accepts is one that is stopped."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind((HOST, port))
        server.listen(16)
        yield server


@contextlib.contextmanager
def serving(said: bytes = b"", **how: Any) -> Generator[FakeRas, None, None]:
    """Run the service on a port that is free."""
    with listening() as server:
        service = FakeRas(server.getsockname()[1], said, **how)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while not service.closed.is_set():
                    threading.Thread(target=service.serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield service
        finally:
            service.closed.set()
            # Who waits in accept() learns of it by a connection.
            with contextlib.suppress(OSError):
                socket.create_connection((HOST, service.port), timeout=1).close()
