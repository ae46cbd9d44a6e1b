"""Serves the pages and pushes for the ranks, in a process of its own, so that what it takes can be told."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from lab.evaluation.model.job import Job
from lab.scale.otlp import Requests
from lab.scale.pages import Pages
from lab.scale.push import Pushers
from lab.scale.values import Values


@dataclass(frozen=True)
class Show:
    """What is shown, and how.

    Args:
        jobs: the runs.
        tick: values change once in so many seconds.
        pushed: ranks push, and are on no page.
    """

    jobs: list[Job]
    tick: float = 3.0
    pushed: bool = False


@dataclass(frozen=True)
class Push:
    """An order: push to these ports, each rank once in so many seconds."""

    ports: list[int]
    interval: float


#: Another: push no more and answer with a tally.
END = "end"


def serve(show: Show, told: Connection) -> None:
    """Serve on a free port of loopback until killed; tell the port, the paths, and when their clock began."""
    # Prometheus keeps a connection to each page, an agent to each rank.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    values = Values(show.jobs, show.tick)
    pages = Pages(show.jobs, values, ranks=not show.pushed)
    requests = Requests(show.jobs, values) if show.pushed else None
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(pages, requests, values.began, told))


async def _serve(pages: Pages, requests: Requests | None, began: float, told: Connection) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = pages.page(head.split(b" ", 2)[1].decode())
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"
                    % len(body)
                )
                writer.write(body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    told.send((server.sockets[0].getsockname()[1], pages.paths, began))
    async with server:
        if requests is not None:
            await _push(requests, told)
        await server.serve_forever()


async def _push(requests: Requests, told: Connection) -> None:
    order = await _order(told)
    assert isinstance(order, Push)
    pushers = Pushers(requests, order.ports, order.interval)
    assert await _order(told) == END
    told.send(await pushers.end())


async def _order(told: Connection) -> Any:
    """Return what the other side wants next."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(told.fileno(), ready.set)
    await ready.wait()
    loop.remove_reader(told.fileno())
    return told.recv()
