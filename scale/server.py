"""Serves the pages, in a process of its own, so that what Prometheus takes can be told from what they take."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from multiprocessing.connection import Connection

from evaluation.model.job import Job
from scale.pages import Pages


def serve(jobs: list[Job], told: Connection) -> None:
    """Serve on a free port of loopback until killed; tell the port, the paths, and when their clock began."""
    # Prometheus keeps a connection to each page.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pages = Pages(jobs)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(pages, told))


async def _serve(pages: Pages, told: Connection) -> None:
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
    told.send((server.sockets[0].getsockname()[1], pages.paths, pages.began))
    async with server:
        await server.serve_forever()
